"""What is made of an update before it is sent, one a file; they go with any algorithm, in the order of its methods."""

from fedjax_collapse.uploads.clip_update import ClipUpdate as ClipUpdate
from fedjax_collapse.uploads.noisy_update import NoisyUpdate as NoisyUpdate
from fedjax_collapse.uploads.top_k import TopK as TopK
