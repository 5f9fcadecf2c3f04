"""Data sources, partitions, and the federation that they make."""

from fedjax_collapse.data import partition as partition
from fedjax_collapse.data import sources as sources
from fedjax_collapse.data.federation import Federation as Federation
