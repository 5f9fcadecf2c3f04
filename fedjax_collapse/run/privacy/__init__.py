"""Differential privacy of clients: what a run spends, and what would break its guarantee."""

from fedjax_collapse.run.privacy.accounting import Mechanism as Mechanism
from fedjax_collapse.run.privacy.accounting import epsilon as epsilon
from fedjax_collapse.run.privacy.accounting import noise_multiplier as noise_multiplier
