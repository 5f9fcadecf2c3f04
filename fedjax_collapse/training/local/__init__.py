"""One client's round."""

from fedjax_collapse.training.local.context import LocalContext as LocalContext
from fedjax_collapse.training.local.loop import NotFinite as NotFinite
from fedjax_collapse.training.local.loop import train as train
from fedjax_collapse.training.local.round import LocalResult as LocalResult
from fedjax_collapse.training.local.round import measure as measure
from fedjax_collapse.training.local.round import personal as personal
from fedjax_collapse.training.local.round import personal_of_trained as personal_of_trained
from fedjax_collapse.training.local.round import predictor as predictor
from fedjax_collapse.training.local.round import run as run
from fedjax_collapse.training.local.round import run_whole as run_whole
