"""Data sources, partitions, augmentation, and federations built from them.

``reading`` reads files for ``sources`` and ``partition``. ``heterogeneity`` measures how clients differ,
``virtual_features`` draws additional features for clients, and ``text`` converts texts to arrays. Sources of natural
clients are streams (``stream``): ``collect`` reads them into memory, ``store`` writes them to the disk.
"""

from fedjax_collapse.data import partition as partition
from fedjax_collapse.data import sources as sources
from fedjax_collapse.data.domains import Domains as Domains
from fedjax_collapse.data.federation import Federation as Federation
from fedjax_collapse.data.own_split import OwnSplit as OwnSplit
