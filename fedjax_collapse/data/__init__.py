"""Data sources, partitions, augmentation, and federations built from them.

``reading`` reads files for sources and partitions, which are a package each. ``class_holders`` is part of
``partition``, ``pixels`` and ``policy`` of ``augment``. ``heterogeneity`` measures how unequal clients are, and
``virtual_features`` adds features to those of clients. ``text`` makes arrays of texts. Sources of natural clients are
streams (``stream``): ``collect`` reads them into memory, ``store`` writes them to the disk.
"""

from fedjax_collapse.data import partition as partition
from fedjax_collapse.data import sources as sources
from fedjax_collapse.data.domains import Domains as Domains
from fedjax_collapse.data.federation import Federation as Federation
from fedjax_collapse.data.own_split import OwnSplit as OwnSplit
