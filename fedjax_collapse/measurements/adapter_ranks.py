"""The measurement ``adapters``: in how many directions low-rank adapters act, before and after aggregation."""

import math
from collections.abc import Sequence

import numpy as np

from fedjax_collapse.analysis.spectrum import effective_rank, table
from fedjax_collapse.analysis.updates import Factors, energy_beyond, known_mean, mean_rank, product_values, weighted_sum
from fedjax_collapse.core.records import UserError, Variables
from fedjax_collapse.nn import adapters as low_rank
from fedjax_collapse.run.measurement import MeasurementView

DIRECTIONS = (1, 2, 4, 8)  # beyond which the share of energy is a number; of others it follows from the arrays


def adapters(view: MeasurementView) -> dict[str, float | np.ndarray]:
    """Spectra of the products ``a s b``, which adapters add to the matrix of each layer.

    P_k is a watched client's product after its training; M is their mean, weighted by the clients' numbers of examples;
    G is the server's product, without what a method adds to the base. No product is formed: singular values are those
    of a small matrix, from QR decompositions of the factors.

    Numbers: ``beyond_r``, the share of the squared norm of G beyond its first r = 1, 2, 4 and 8 directions,
    ``effective_rank`` of G, both the mean over the layers where it is not 0, and ``norm``, Frobenius, of all layers
    together; with ``mean_`` of M, and ``local_effective_rank`` of the P_k. ``error`` |M - G| / |M| of all layers
    together.

    Arrays, layers in the order of their paths: ``singular_values`` of G and ``mean_singular_values`` of M [layers,
    most], NaN beyond a layer's own.
    """
    kept = _factors(view.server.variables)
    if not kept:
        raise UserError("measurement adapters: the network has no adapters; set network.adapters, or leave it out")
    clients = [_factors(model.variables) for model in view.local.values()]
    sizes = np.asarray(view.federation.ownership.sizes)[list(view.local)].astype(float)
    means = {layer: weighted_sum([of[layer] for of in clients], sizes / sizes.sum()) for layer in kept if clients}
    gaps = [weighted_sum([means[layer], kept[layer]], (1.0, -1.0)) for layer in means]
    numbers, arrays = {}, {}
    for prefix, products in (("", kept), ("mean_", means)):
        values = _values(products.values())
        numbers |= {f"{prefix}beyond_{r}": float(known_mean([energy_beyond(v, r) for v in values])) for r in DIRECTIONS}
        numbers[f"{prefix}effective_rank"] = mean_rank(effective_rank, values)
        numbers[f"{prefix}norm"] = _norm(values)
        arrays[f"{prefix}singular_values"] = table(values, max(map(len, values), default=0))
    numbers["error"] = _norm(_values(gaps)) / numbers["mean_norm"] if numbers["mean_norm"] > 0 else math.nan
    local = {"local_effective_rank": [mean_rank(effective_rank, _values(of.values())) for of in clients]}
    return numbers | view.over_clients(local) | arrays


def _factors(variables: Variables) -> dict[str, Factors]:
    """Returns the factors of each layer's product, in float64, the scale in the first."""
    return {
        layer: (np.asarray(a, np.float64) * np.asarray(scale), np.asarray(b, np.float64))
        for layer, (a, b, scale) in low_rank.adapters(variables.params).items()
    }


def _values(products):
    return [product_values(*factors) for factors in products]


def _norm(values: Sequence[np.ndarray]) -> float:
    return math.sqrt(sum(np.sum(of_layer**2) for of_layer in values)) if values else math.nan
