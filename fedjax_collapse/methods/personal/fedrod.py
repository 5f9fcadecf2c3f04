"""FedRoD: a generic head for balanced classes, which is averaged, and a personal head for each client's classes.

    body, G     CE(g + tau log n_c),           g = G z            (balanced softmax; z are the features)
    H           CE(sg(g) + H sg(z)),           sg: no gradient flows

Chen and Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification" (ICLR 2022). Body and
G are averaged; H stays at the client, which predicts with g + H z. The server's model predicts with g. Both losses
share a forward pass, so a step on their sum is a step of each of PFLlib's two optimizers. The network has the head
``nn.heads.TwoHeads``. Fine-tuning before own tests trains body and G; H is that of the client's last round.

The authors released no code. The paper's hypernetwork, which makes H for a new client, is not implemented. We do not
know how the paper initialises H; here it is 0. PFLlib's and FL-bench's H start as copies of G
(``TwoHeads(copied=True)``), and PFLlib counts classes on batches that leave out the last partial one. FL-bench
(``variant="fl_bench"``) trains H and the body also by CE(H z), and predicts with H z.
"""

import jax

from fedjax_collapse.core.records import Outputs, PyTree
from fedjax_collapse.losses import balanced_cross_entropy, cross_entropy
from fedjax_collapse.methods.base import ClientView, LocalView, Method, Term
from fedjax_collapse.nn.heads import TwoHeads
from fedjax_collapse.schema.options import NonNegative, option


class FedRoD(Method):
    """A generic head by balanced softmax, and private personal heads.

    Args:
        tau: factor of the log class counts in the generic head's loss, which leaves out classes that the client lacks.
        variant: ``paper``, or ``fl_bench``, whose personal head also trains the body and does not add the generic
            logits.
    """

    needs = ("classes", TwoHeads)
    private = "head/personal"

    tau: NonNegative = 1.0
    variant: str = option("paper", choices=("paper", "fl_bench"))

    def task(self, view: LocalView) -> jax.Array:
        rows = view.outputs.logits, view.batch.labels, view.batch.mask
        return balanced_cross_entropy(*rows, view.class_counts, self.tau)

    def penalty(self, view: LocalView) -> dict[str, Term]:
        outputs = view.outputs if self.variant == "fl_bench" else jax.lax.stop_gradient(view.outputs)
        logits = self.personal_logits(outputs, view.params)
        return {"personal": Term(1.0, cross_entropy(logits, view.batch.labels, view.batch.mask))}

    def predict(self, outputs: Outputs, view: ClientView) -> jax.Array:
        return self.personal_logits(outputs, view.server.params)

    def personal_logits(self, outputs: Outputs, params: PyTree) -> jax.Array:
        """Returns the logits [batch, classes] with which a client predicts."""
        head = params["head"]["personal"]
        logits = outputs.features @ head["kernel"] + head.get("bias", 0)
        return logits if self.variant == "fl_bench" else outputs.logits + logits
