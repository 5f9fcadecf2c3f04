"""Clients that lack classes: the bound of FedMR's theorem 1, and the margins of linear classifiers (section 3.2).

Fan et al., "Federated Learning with Partially Class-Disjoint Data via Manifold Reshaping" (TMLR 2023).
"""

import numpy as np
from jaxtyping import Float

from fedjax_collapse.core.records import UserError
from fedjax_collapse.schema.options import Fraction, Natural, NonNegative, checked

_ROUNDING = 1e-12  # of shares that add up to 1


@checked
def representation_bound(
    share: Fraction, others_share: Fraction, size: NonNegative, margin: NonNegative, rounds: Natural
) -> float:
    """Returns FedMR's bound on ``|z - a*|``, one coordinate of a client's representation z of an example of a class.

        2 (1 - others_share Gamma) size + margin Gamma,    Gamma = 1 + share + ... + share^(rounds - 1)

    a* is the coordinate in the globally optimal representation of the class. Dimensions are assumed to be decorrelated.

    Gamma is (1 - share^rounds) / (1 - share), or ``rounds`` if share is 1. It rises with the rounds, from 1 after the
    first to 1 / (1 - share), although the paper says that it falls; the bound falls only if
    ``2 others_share size > margin``. Without a margin its limit is ``2 size (1 - share - others_share) / (1 - share)``,
    which is 0 if all other clients supply the coordinate. Before the first round it is ``2 size``.

    Args:
        share: the client's share of all examples of the class, the paper's p.
        others_share: summed share of the other clients that can supply this coordinate of the class prototype (p hat).
        size: bound on both absolute values, the paper's G.
        margin: the largest margin that the inter-class loss causes (delta); 0 if the loss has no margin.
        rounds: the number of rounds, t.

    Raises:
        UserError: an argument is invalid, or the shares add up to more than 1.
    """
    if share + others_share > 1 + _ROUNDING:
        raise UserError(
            f"representation_bound: others_share {others_share:g} is too large, expected at most 1 - share = "
            f"{1 - share:g}: they are shares of the same examples"
        )
    gamma = sum(share**t for t in range(rounds))
    return 2 * (1 - others_share * gamma) * size + margin * gamma


def disc_margins(
    weights: Float[np.ndarray, "classes dims"], centres: Float[np.ndarray, "classes dims"], radius: float
) -> Float[np.ndarray, " classes"]:
    """Returns how far each class's disc is from the region of another class, negative if the boundary cuts the disc.

    ``weights`` are the rows, all different, of a linear classifier without bias; class c is a disc around centre c.
    """
    apart = weights[:, None] - weights
    scores, lengths = np.einsum("cod,cd->co", apart, centres), np.linalg.norm(apart, axis=2)
    distances = np.divide(scores, lengths, out=np.full(scores.shape, np.inf), where=lengths > 0)
    return distances.min(axis=1) - radius
