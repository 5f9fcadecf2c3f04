"""What is made of an update before it is sent, one a file; they go with any algorithm, in the order of its methods."""

from fedjax_collapse import rooms
from fedjax_collapse.method import Method
from fedjax_collapse.uploads.clip_update import ClipUpdate as ClipUpdate
from fedjax_collapse.uploads.noisy_update import NoisyUpdate as NoisyUpdate
from fedjax_collapse.uploads.top_k import TopK as TopK


def __getattr__(name: str) -> type[Method]:
    """Every other method that has a file here."""
    return rooms.class_named(__name__, name)
