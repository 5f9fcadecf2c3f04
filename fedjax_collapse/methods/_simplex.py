"""What FedETF, FedGELA and FedDr+ ask of a network: a head of fixed simplex classifiers."""

from fedjax_collapse.core.records import UserError
from fedjax_collapse.nn.heads import Simplex
from fedjax_collapse.nn.inspection import layers_of_class
from fedjax_collapse.nn.model import Model


def check_simplex(method: str, model: Model, head: str = "etf") -> Simplex:
    """The network's simplex.

    Raises:
        UserError: it has none, which names the ``head`` to choose, or its task is not classification.
    """
    if not model.task.is_classification:
        raise UserError(f"{method}: expected the task of classification, whose classes are those of the head")
    if not (found := layers_of_class(model, Simplex)):
        kind, name = head.upper() if head == "etf" else head.capitalize(), type(model.module).__name__
        raise UserError(
            f"{method}: network {name} has no fixed simplex of classifiers; set network.head={head!r}, in Python "
            f"head=nn.heads.{kind}"
        )
    return found[0]
