"""The measurement ``communication``: how many numbers a round sends."""

import jax

from fedjax_collapse.run.measurement import MeasurementView
from fedjax_collapse.training import communication as counting

_found: dict[tuple, counting.Communication] = {}  # by all that it depends on


def communication(view: MeasurementView) -> dict[str, int]:
    """Numbers that a client receives, sends and stores in a round, for the model and all methods.

    ``down`` and ``up`` are counted as by ``fedjax-collapse communication``, and the same in every round; ``stored`` are
    private parts and the methods' memory.
    """
    leaves, structure = jax.tree.flatten(view.algorithm)
    train = view.federation.train
    shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(train))
    key = view.model, structure, tuple(map(float, leaves)), shapes
    if key not in _found:
        _found[key] = counting.communication(view.algorithm, view.model, train)
    found = _found[key]
    return {"down": sum(found.down.values()), "up": sum(found.up.values()), "stored": found.kept}
