"""FedPer: every client keeps a head of its own, and only the body is averaged.

Arivazhagan et al., "Federated Learning with Personalization Layers" (2019). Head and body are trained jointly. A client
starts from the initial head; what is evaluated are the personal models, each on a test set with its client's own shares
of classes. One that was in no cohort still has the initial head, and counts as well; ``newcomers="mean"`` gives it the
mean of the last cohort's heads, as the code released with FedRep (``newcomers.py``).

It is ``FedAvg(private="head")`` by its name. Bodies are averaged by size, as published; the code released with FedRep
has equal weights (``weighting="equal"``). BatchNorm is of the body; ``private="batch_norm"`` keeps it, too.
"""

from flax import struct

from fedjax_collapse.core.options import option
from fedjax_collapse.methods._newcomers import CHOICES, PrivateHead


@struct.dataclass
class FedPer(PrivateHead):
    """Private heads. ``newcomers``: the head of a client that was in no cohort."""

    newcomers: str = option("initial", choices=CHOICES)
