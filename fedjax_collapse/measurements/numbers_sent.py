"""The measurement ``communication``: how many numbers a round sends."""

import dataclasses
import functools

import jax

from fedjax_collapse.core.records import Examples
from fedjax_collapse.nn.model import Model
from fedjax_collapse.run.measurement import MeasurementView
from fedjax_collapse.training import communication as counting
from fedjax_collapse.training.algorithm import FedAvg


def communication(view: MeasurementView) -> dict[str, int]:
    """Numbers that a client receives, sends and stores in a round, for the model and all methods.

    ``down`` and ``up`` are counted as by ``fedjax-collapse communication``, and the same in every round; ``stored`` are
    private parts and the methods' memory.
    """
    leaves, structure = jax.tree.flatten(view.algorithm)
    train = view.federation.train
    shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(train))
    found = _counted(_Round(view.algorithm, train, view.model, structure, tuple(map(float, leaves)), shapes))
    return {"down": sum(found.down.values()), "up": sum(found.up.values()), "stored": found.kept}


@dataclasses.dataclass(frozen=True)
class _Round:
    """An algorithm with its data, equal to others with the same structure and numbers."""

    algorithm: FedAvg = dataclasses.field(compare=False)
    train: Examples = dataclasses.field(compare=False)
    model: Model
    structure: jax.tree_util.PyTreeDef
    numbers: tuple[float, ...]
    shapes: tuple


@functools.lru_cache(maxsize=64)
def _counted(of):
    return counting.communication(of.algorithm, of.model, of.train)
