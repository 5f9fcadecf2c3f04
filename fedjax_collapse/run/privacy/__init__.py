"""Differential privacy of clients: the epsilon of a run, and checks of its guarantee."""

from fedjax_collapse.run.privacy.accounting import Mechanism as Mechanism
from fedjax_collapse.run.privacy.accounting import epsilon as epsilon
from fedjax_collapse.run.privacy.accounting import noise_multiplier as noise_multiplier
