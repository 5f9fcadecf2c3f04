"""The measurement ``updates``: in how many directions local training and the server change each layer's weights."""

import itertools
from collections.abc import Sequence

import numpy as np

from fedjax_collapse.analysis.rank import stable_rank
from fedjax_collapse.analysis.spectrum import effective_rank, table
from fedjax_collapse.analysis.updates import (
    Decomposition,
    aggregation,
    as_matrices,
    cosines,
    decompose,
    energy,
    known_mean,
    mean_rank,
    overlap,
)
from fedjax_collapse.core.records import UserError
from fedjax_collapse.methods.robust._attacks import Attack
from fedjax_collapse.run.measurement import MeasurementView

DIRECTIONS = (1, 2, 4, 8, 16)  # of the shares of energy
_SPAN = 8  # the most directions of an update that are compared between clients
_RANKS = {"effective_rank": effective_rank, "stable_rank": stable_rank}


def updates(view: MeasurementView) -> dict[str, float | np.ndarray]:
    """Spectra of the round's updates of every weight matrix, and the distance of their mean from the server's change.

    P_k is a watched client's update, without its private parts; M is their mean, weighted by the clients' numbers of
    examples; G is the change of the server's weights. A convolution's weight is the matrix of its patches.

    Numbers: ``effective_rank`` and ``stable_rank`` of G, with ``mean_`` of M and with ``local_`` of the P_k; each is
    the mean over the layers that change. ``error`` |M - G| / |M|, ``cosine`` of both, and ``agreement`` |M|^2 / sum p_k
    |P_k|^2, of all layers together. ``input_overlap`` and ``output_overlap`` of the first 8 directions of two clients,
    the mean over pairs and layers.

    With attacks (``docs/methods.md``) also ``honest_`` and ``malicious_`` ranks, the mean over the clients of each
    kind; they are of what a malicious client trains, before an attack that replaces its upload.

    Arrays, layers in the order of their paths: ``singular_values`` of G and ``mean_singular_values`` of M [layers,
    most], ``local_singular_values`` [watched, layers, most], NaN beyond a layer's own and for a client outside the
    cohort. ``energy`` and ``mean_energy`` [layers, 5] of the first 1, 2, 4, 8 and 16 directions. ``input_cosines`` and
    ``output_cosines`` [layers, 8] of the principal angles, the mean over pairs of clients.
    """
    kept = as_matrices(view.server_update)
    if not kept:
        raise UserError("measurement updates: clients share no weight matrix with the server; leave it out")
    changes = view.updates
    of_clients = [as_matrices(update) for update in changes.values()]
    by_layer = [[update[path] for update in of_clients] for path in kept]
    sizes = np.asarray(view.federation.ownership.sizes)[list(changes)].astype(float)
    means = [_weighted_mean(*layer, sizes) for layer in zip(by_layer, kept.values(), strict=True)]
    server, mean = ([decompose(matrix, 0).values for matrix in of] for of in (kept.values(), means))
    local = [[decompose(matrix, _SPAN) for matrix in of_layer] for of_layer in by_layer]
    values = [[of_layer[k].values for of_layer in local] for k in range(len(of_clients))]
    most = max(map(len, server))
    numbers = aggregation(by_layer, means, list(kept.values()), sizes)._asdict()
    arrays = {}
    for prefix, of_layers in (("", server), ("mean_", mean)):
        numbers |= {f"{prefix}{name}": mean_rank(rank, of_layers) for name, rank in _RANKS.items()}
        arrays[f"{prefix}singular_values"] = table(of_layers, most)
        arrays[f"{prefix}energy"] = np.array([[energy(v, count) for count in DIRECTIONS] for v in of_layers])
    ranks = {f"local_{name}": [mean_rank(rank, of) for of in values] for name, rank in _RANKS.items()}
    malicious = _malicious(view)
    for name, ranks_of in list(ranks.items()) if malicious is not None else ():
        for kind, chosen in (("honest", ~malicious), ("malicious", malicious)):
            numbers[name.replace("local", kind)] = float(known_mean(np.array(ranks_of)[chosen]))
    tables = [table(of, most) for of in values]
    arrays["local_singular_values"] = view.stacked(tables, arrays["singular_values"])
    for side in ("inputs", "outputs"):
        name = side.removesuffix("s")
        numbers[f"{name}_overlap"] = known_mean([overlap(*pair) for layer in local for pair in _pairs(layer, side)])
        found = [[cosines(*pair) for pair in _pairs(layer, side)] for layer in local]
        arrays[f"{name}_cosines"] = np.stack([known_mean(table(of_pairs, _SPAN)) for of_pairs in found])
    return numbers | view.over_clients(ranks) | arrays


def _malicious(view):
    """Whether each watched client in the cohort is malicious [clients], by any attack; None without an attack."""
    attacks = [method for method in view.algorithm.methods.values() if isinstance(method, Attack)]
    ids = np.array(list(view.local), int)
    found = [np.asarray(attack.is_malicious(ids, view.federation.num_clients)) for attack in attacks]
    return np.any(found, axis=0) if found else None


def _weighted_mean(of_clients, like, sizes):
    return np.average(of_clients, axis=0, weights=sizes) if of_clients else np.full_like(like, np.nan)


def _pairs(layer: Sequence[Decomposition], side: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the directions on one side of each pair of clients that have any."""
    directions = [getattr(of_client, side) for of_client in layer]
    return list(itertools.combinations([columns for columns in directions if columns.shape[1]], 2))
