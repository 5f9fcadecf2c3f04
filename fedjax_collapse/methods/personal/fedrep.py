"""FedRep: each client has a private head, fits it to the received body, and then trains the body.

    head for ``head_epochs``, body as received;   body for ``body_epochs``, head as just trained;   bodies are averaged

Collins et al., "Exploiting Shared Representations for Personalized Federated Learning" (ICML 2021). Clients are
weighted equally. Ten epochs of the head and one of the body are its setting for CIFAR-10 with two classes per client;
its other settings have 10 and 5. They replace ``LocalTraining.epochs``.

Each phase has a separate optimizer. The released code has one for both: with PyTorch 2 the part that is not trained
does not change and momentum starts at zero in each phase, as here; with earlier versions momentum and weight decay
continued to change it. It applies weight decay to weights only, and in the last round all clients train their heads
once more, for at least 10 epochs; this pass is not implemented. A client that was in no cohort has the initial head, or
with ``newcomers="mean"``, as in the code, the mean of the last cohort's heads (``_newcomers.py``). Evaluation and
BatchNorm are as in ``fedper.py``.
"""

from fedjax_collapse.methods.personal._newcomers import CHOICES, PrivateHead
from fedjax_collapse.optim.local_training import Phase
from fedjax_collapse.schema.options import Positive, option


class FedRep(PrivateHead):
    """Private heads, trained before the body.

    Args:
        head_epochs: epochs of the head alone; with ``body_epochs`` they replace local training's.
        body_epochs: epochs of the body alone, afterwards; 10 and 1 are published for CIFAR-10 with two classes per
            client.
        newcomers: head of a client that was in no cohort: the ``initial`` one, or the last cohort's ``mean``, as in the
            released code.
    """

    head_epochs: Positive = 10
    body_epochs: Positive = 1
    newcomers: str = option("initial", choices=CHOICES)

    weighting = "equal"

    @property
    def phases(self) -> tuple[Phase, ...]:
        return Phase("head", self.head_epochs), Phase("body", self.body_epochs)
