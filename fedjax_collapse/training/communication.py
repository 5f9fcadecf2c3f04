"""The count of numbers that a client and the server exchange in a round, computed from shapes and masks.

    down    the variables that the server changes, and the methods' state at the server
    up      the variables (or update) that the client sends, and the methods' reports

Methods declare what is not sent (``Method.not_sent``): state that clients do not read or that never changes, and
reports that the server can compute. Paths begin with ``down/params`` (the model), ``measuring`` (the model that is sent
again to be measured), ``up`` (the upload), ``shared`` (the method's state), ``report``, ``measured`` (its reports) or
``fixed`` (reports for params that are not uploaded).

A report that is the update times a number, as FedDyn's ``h`` (``Method.reports_update``), is not counted either, unless
uploads are not the update. Private parts are read from the client's copy. Products of adapters, which are reported as
sums of matrices, count as their factors. For ``dispatch``, clients send ``Method.dispatch_reads`` and receive
``Method.dispatch_makes``.

Reports on the initial model are sent once, before the first round; reports of all clients on the final model (``CCVR``
with ``clients="all"``) once, after the last. If a method's cohort measures the new model (``Recalibrate``, ``CCVR``),
the model is sent twice. Zeros that stay zeros, such as the private part of SCAFFOLD's variate, are counted. The network
is replaced by an outline with the same shapes, so deep networks take no longer.

Every entry of an array counts as one number of any type. PyTorch's state dict, which published tables count, has one
more number for each layer with running statistics, a counter of batches.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import Examples, PyTree
from fedjax_collapse.nn.model import Model
from fedjax_collapse.training import local, server
from fedjax_collapse.training.algorithm import FedAvg
from fedjax_collapse.training.outline import client_of, outline_of

MODEL = ("params", "batch_stats")


class Communication(NamedTuple):
    """Counts by content: ``params``, ``batch_stats``, and each method that sends something, by its name."""

    down: Mapping[str, int]  # to a client, in each round in which it takes part
    up: Mapping[str, int]  # from that client
    counters: int  # layers whose running statistics are sent
    kept: int  # stored at a client between its rounds: private parts and the methods' memory

    def of_model(self, way: str) -> int:
        """Returns the count for the network; ``way`` is ``down`` or ``up``."""
        return sum(getattr(self, way).get(name, 0) for name in MODEL)

    def of_methods(self, way: str) -> int:
        """Returns the count for all methods."""
        return sum(getattr(self, way).values()) - self.of_model(way)


def communication(algorithm: FedAvg, model: Model, train: Examples) -> Communication:
    """Returns how many numbers a client exchanges in a round.

    Args:
        algorithm: the algorithm.
        model: the model.
        train: the examples, or their shapes.

    Raises:
        UserError: the algorithm is invalid, or does not fit the model.
    """
    algorithm.check(model)
    variables = model.variable_shapes()
    algorithm, model = algorithm.enabled(), outline_of(model)
    received, state = jax.eval_shape(lambda variables: server.init(algorithm, model, variables, 2), variables)
    of_round = train, received, jnp.zeros((), jnp.int32), client_of(algorithm, train, state)

    def reports(*of_round):
        context = local.LocalContext(algorithm, model, *of_round)
        return local.run(context).upload, local.measure(context)

    upload, measured = jax.eval_shape(reports, *of_round)
    changed = masks.without(algorithm.unchanged_by_server(model), variables)
    not_sent = [pattern for method in algorithm.methods.values() for pattern in method.not_sent]
    sent = _sizes({"up": upload.mean}, not_sent)
    down = _by_group(_sizes({"down": changed, "measuring": changed if measured else ()}, not_sent))
    up = _by_group({path: _entries(algorithm, path, size) for path, size in sent.items()})
    fixed = masks.by_path(variables.params).keys() - masks.by_path(upload.mean.params).keys()
    unchanged = {} if algorithm.having("receive") else masks.select(algorithm.never_changed(model), variables)
    at_server = 0
    for name, method in algorithm.methods.items():
        left_out = [*method.not_sent]
        if all(other.scales_upload for other in algorithm.having("upload").values()):
            left_out += [f"report/{pattern}" for pattern in method.reports_update]
        down[name] += sum(_sizes({"shared": received.shared[name]}, left_out).values())
        reports = {"measured": measured.get(name, ()), **_divided(upload.total[name], fixed)}
        up[name] += sum(_sizes(reports, left_out).values())
        if method.has("dispatch"):
            states = _sizes({"private": state.private, "memory": state.memory[name]})
            read = {
                path: size
                for path, size in _matching(states, method.dispatch_reads).items()
                if path.removeprefix("private/") not in unchanged
            }
            sent |= read
            up += _by_group(read, name)
            down += _by_group(_matching(states, method.dispatch_makes), name)
            at_server += sum(_matching(states, method.dispatch_keeps).values())
    layers = {path.rpartition("/")[0] for path in sent if path.split("/")[1] == "batch_stats"}
    return Communication(dict(+down), dict(+up), len(layers), sum(_sizes(state).values()) - at_server)


def _divided(report: PyTree, fixed: Iterable[str]) -> dict[str, dict[str, jax.ShapeDtypeStruct]]:
    """Returns the leaves of a report by path: those of the ``fixed`` params, and the others."""
    divided = {"report": {}, "fixed": {}}
    for path, leaf in masks.by_path(report).items():
        is_fixed = any(f"/{path}".endswith(f"/{param}") for param in fixed)
        divided["fixed" if is_fixed else "report"][path] = leaf
    return divided


def _sizes(tree: PyTree, left_out: Iterable[str] = ()) -> dict[str, int]:
    """Returns the sizes of the leaves by path, without paths that match a pattern."""
    sizes = {path: leaf.size for path, leaf in masks.by_path(tree).items()}
    return {path: sizes[path] for path in sizes.keys() - _matching(sizes, left_out).keys()}


def _matching(sizes: Mapping[str, int], patterns: Iterable[str]) -> dict[str, int]:
    return {path: size for path, size in sizes.items() if any(fnmatchcase(path, pattern) for pattern in patterns)}


def _by_group(sizes: Mapping[str, int], method: str = "") -> Counter:
    """Returns the sums of sizes of params, of running statistics, and of the method's arrays."""
    total = Counter()
    for path, size in sizes.items():
        group = path.split("/")[1]
        total[group if group in MODEL and not path.startswith("memory/") else method] += size
    return total


def _entries(algorithm: FedAvg, path: str, size: int) -> int:
    """Returns how many numbers represent an array of an upload; for a sparse array its entries and their positions."""
    sent = size
    if algorithm.sends_updates and path.startswith("up/params/"):
        for method in algorithm.having("density").values():
            sent = max(1, math.ceil(method.density * size))
    return min(2 * sent, size)
