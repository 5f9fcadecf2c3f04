"""FedPer: each client has a private head; only the body is averaged.

Arivazhagan et al., "Federated Learning with Personalization Layers" (2019). Head and body are trained jointly. A client
starts from the initial head. The personal models are evaluated, each on a test set with its client's class
proportions. A client that was in no cohort has the initial head, and is included in the evaluation;
``newcomers="mean"`` gives it the mean of the last cohort's heads, as in FedRep's released code (``_newcomers.py``).

It is the same as ``FedAvg(private="head")``. Bodies are averaged by size, as published; FedRep's released code weights
clients equally (``weighting="equal"``). BatchNorm belongs to the body; ``private="batch_norm"`` makes it private, too.
"""

from fedjax_collapse.methods.personal._newcomers import CHOICES, PrivateHead
from fedjax_collapse.schema.options import option


class FedPer(PrivateHead):
    """Private heads.

    Args:
        newcomers: head of a client that was in no cohort: the ``initial`` one, or the last cohort's ``mean``.
    """

    newcomers: str = option("initial", choices=CHOICES)
