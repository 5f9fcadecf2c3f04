"""FedRep: every client keeps a head of its own, fits it to the body that it received, and then trains the body.

    head for ``head_epochs``, body as received;   body for ``body_epochs``, head as just trained;   bodies are averaged

Collins et al., "Exploiting Shared Representations for Personalized Federated Learning" (ICML 2021); clients weigh the
same. Ten epochs of the head and one of the body are those of its CIFAR-10 with two classes a client; 10 and 5 of the
others. They take the place of ``LocalTraining.epochs``.

Each phase has an optimizer of its own. The released code has one for both: with PyTorch 2 the part that is not trained
stays as it is and momentum starts at zero for each, as here; before, momentum and weight decay continued moving it. It
has weight decay on weights alone, and in a last round all clients train their heads once more, for at least 10 epochs:
that pass is not made here. A client that was in no cohort has the initial head, with ``newcomers="mean"`` the mean of
the last cohort's heads, as released (``newcomers.py``). Evaluation, BatchNorm: as in ``fedper.py``.
"""

from flax import struct

from fedjax_collapse.core.options import Positive, option
from fedjax_collapse.methods._newcomers import CHOICES, PrivateHead
from fedjax_collapse.training.local_training import Phase


@struct.dataclass
class FedRep(PrivateHead):
    """Private heads, trained before the body. ``newcomers``: the head of a client that was in no cohort."""

    head_epochs: Positive = 10
    body_epochs: Positive = 1
    newcomers: str = option("initial", choices=CHOICES)

    weighting = "equal"

    def phases(self) -> tuple[Phase, ...]:
        return Phase("head", self.head_epochs), Phase("body", self.body_epochs)
