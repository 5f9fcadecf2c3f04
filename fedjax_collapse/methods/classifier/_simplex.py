"""The check that a network has a fixed simplex classifier, as FedETF, FedGELA and FedDr+ require."""

from fedjax_collapse.core.records import UserError
from fedjax_collapse.nn.heads import Simplex
from fedjax_collapse.nn.inspection import layers_of_class
from fedjax_collapse.nn.model import Model


def check_simplex(method: str, model: Model, head: str = "etf") -> Simplex:
    """Returns the simplex layer of the network.

    Raises:
        UserError: if there is none (the message suggests ``head``), or if the task is not classification.
    """
    if not model.task.is_classification:
        raise UserError(f"{method}: expected a task of classification, with the classes of the head")
    if not (found := layers_of_class(model, Simplex)):
        kind, name = head.upper() if head == "etf" else head.capitalize(), type(model.module).__name__
        raise UserError(
            f"{method}: network {name} has no fixed simplex of classifiers; set network.head={head!r}, in Python "
            f"head=nn.heads.{kind}"
        )
    return found[0]
