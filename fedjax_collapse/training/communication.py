"""The exact count of numbers that a client and the server exchange in a round, computed from shapes only.

The count follows from the dependences in a round's programs:

    down    what the client's program reads of the server's model and of the methods' state there, if a round changes it
    up      what the server reads of the client's model (or update) and of the methods' reports

Where the server makes a part of the clients' states from those of all (``dispatch``), it also reads what it uses of
what the client's program has changed, and the client what it uses of what the server has made.

What the other side already knows is not counted: constants such as frozen weights were sent once; a private part is
read from the client's own copy; a report that depends on nothing that only the client has (its examples, size, state
and randomness), or is its update times a number, as FedDyn's ``h``, needs no sending. Products of adapters, which are
reported as sums of matrices, are sent as their factors. Reports on the initial model are
sent once, before the first round; those of all clients on the final model (``CCVR`` with ``clients="all"``) once,
after the last. If a method's cohort measures the new model (``Recalibrate``, ``CCVR``), the model is sent twice.

The network is replaced by an outline with the same shapes, so deep networks take no longer. Everything computed in a
loop counts as dependent on everything that enters the loop. Zeros that stay zeros, such as the private part of
SCAFFOLD's variate, are counted.

Every entry of an array counts as one number of any type. A PyTorch state dict, which published tables count, has one
more number for each layer with running statistics: its counter of batches.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import Examples
from fedjax_collapse.nn.adapters import is_of_adapter
from fedjax_collapse.nn.model import Model
from fedjax_collapse.training import local, server
from fedjax_collapse.training.algorithm import FedAvg
from fedjax_collapse.training.jaxprs import dependences, is_literal
from fedjax_collapse.training.outline import context_of, outline_of, shapes_of_known, shapes_of_own

MODEL = ("params", "batch_stats")
_CLIENTS = 2  # in the program of the server, whose reading does not depend on their number


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
    """Returns what a client exchanges in a round of this algorithm.

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
    received, state = jax.eval_shape(lambda variables: server.init(algorithm, model, variables, _CLIENTS), variables)
    own = shapes_of_own(algorithm, train, state)
    given = {"received": received, "known": shapes_of_known(), "own": own}

    def train_client(given):
        result = local.run(context_of(algorithm, model, given))
        return {"upload": result.upload, "state": result.state}

    def measure(given):
        return local.measure(context_of(algorithm, model, given)) if algorithm.measuring() else {}

    training, measuring = _Program(train_client, given), _Program(measure, given)
    upload = training.shapes["upload"]

    def aggregate(given):
        constants = server.Divided(jnp.ones(()), jnp.zeros((), jnp.int32), jax.random.key(0))
        new = server.aggregate(algorithm, model, given["received"], given["upload"], constants)
        new = server.apply_measured(algorithm, model, new, given["measured"])
        return server.after_round(algorithm, given["received"].variables, new, given["measured"])

    aggregating = _Program(aggregate, {"received": received, "upload": upload, "measured": measuring.shapes})
    changed = {f"received/{name}" for name in aggregating.outputs if not aggregating.is_unchanged(name)}
    down = [(name, program.sizes[name]) for program in (training, measuring) for name in program.read & changed]
    sent = [name for name in training.outputs if name in aggregating.read and training.is_of("own", name)]
    sent = _with_factors(algorithm, sent, training.outputs)
    copied = training.copies_of_update(algorithm.sends_updates)
    up = [(name, _entries(algorithm, name, training.sizes[name])) for name in sent if name not in copied]
    up += [
        (f"measured/{name}", measuring.sizes[name])
        for name in measuring.outputs
        if f"measured/{name}" in aggregating.read and measuring.is_of("own", name)
    ]
    made, read = _dispatched(algorithm, received, state)
    used, stored = training.used | measuring.used, {name for name in training.outputs if name.startswith("state/")}
    down += [(name, training.sizes[name]) for name in made if f"own/{name}" in used]
    changed = {name for name in stored if not training.is_unchanged(name, "own") and training.is_of("own", name)}
    up += [(name, training.sizes[name]) for name in read & changed]
    layers = {name.rpartition("/")[0] for name in {*sent, *(read & changed)} if _group(name) == "batch_stats"}
    of_server = {name for name in made | read if f"own/{name}" not in used and name not in changed}
    kept = sum(training.sizes[name] for name in stored - of_server)
    return Communication(_added(down), _added(up), len(layers), kept)


def _with_factors(algorithm: FedAvg, sent: list[str], outputs: Iterable[str]) -> list[str]:
    """Returns what is sent, with the adapters in place of reports that the server can compute from them."""
    products = tuple(f"upload/total/{name}/" for name, method in algorithm.methods.items() if method.sends_factors)
    others = [name for name in sent if not name.startswith(products)]
    if len(others) == len(sent):
        return sent
    uploaded = (name for name in outputs if name.startswith("upload/mean/") and is_of_adapter(name))
    return others + [name for name in uploaded if name not in sent]


def _dispatched(algorithm, received, state) -> tuple[frozenset[str], frozenset[str]]:
    """Returns what the server changes of the clients' states, and what it reads of them."""
    if not algorithm.having("dispatch"):
        return frozenset(), frozenset()
    key = jax.eval_shape(lambda: jax.random.key(0))
    round, arrived = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((_CLIENTS,), bool)
    of_all = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((_CLIENTS, *leaf.shape), leaf.dtype), state)

    def dispatch(given):
        return {"state": server.dispatch(algorithm, given["server"], given["state"], *given["other"])}

    program = _Program(dispatch, {"server": received, "state": of_all, "other": (arrived, round, key)})
    made = frozenset(name for name in program.outputs if not program.is_unchanged(name, ""))
    return made, frozenset(name for name in program.used if name.startswith("state/"))


def _entries(algorithm: FedAvg, name: str, size: int) -> int:
    """Returns how many numbers represent an array of an upload; for a sparse array its entries and their positions."""
    sent = size
    if algorithm.sends_updates and _group(name) == "params":
        for method in algorithm.having("upload").values():
            sent = method.entries(sent, size)
    return min(2 * sent, size)


def _group(name: str) -> str:
    """Returns what an array belongs to, by its path."""
    where, _, path = name.partition("/")
    kind, _, path = path.partition("/") if where != "measured" else (where, "", path)
    of_client = "memory", "private"
    return path.partition("/")[0] if kind in ("variables", "mean", "shared", "total", "measured", *of_client) else ""


def _added(arrays) -> dict[str, int]:
    total = Counter()
    for name, size in arrays:
        total[_group(name)] += size
    return dict(total)


class _Program:
    """The jaxpr of a function of a tree, with inputs and outputs named by their paths."""

    def __init__(self, function, given: Mapping[str, Any]):
        closed, self.shapes = jax.make_jaxpr(function, return_shape=True)(given)
        jaxpr, leaves = closed.jaxpr, masks.by_path(given)
        self.inputs = dict(zip(leaves, jaxpr.invars, strict=True))
        self.outputs = dict(zip(masks.by_path(self.shapes), jaxpr.outvars, strict=True))
        found = dependences(jaxpr, [frozenset([name]) for name in leaves])
        self._needs = dict(zip(self.outputs, found, strict=True))
        self._made = {variable: equation for equation in jaxpr.eqns for variable in equation.outvars}
        shapes = leaves | masks.by_path(self.shapes)
        self.sizes = {name: math.prod(leaf.shape) for name, leaf in shapes.items()}

    @property
    def read(self) -> frozenset[str]:
        """The inputs that at least one output depends on."""
        return frozenset().union(*self._needs.values())

    @property
    def used(self) -> frozenset[str]:
        """The inputs that at least one output depends on that is not itself an input."""
        given = set(self.inputs.values())
        made = [name for name, variable in self.outputs.items() if is_literal(variable) or variable not in given]
        return frozenset().union(*(self._needs[name] for name in made))

    def is_of(self, part: str, name: str) -> bool:
        """Returns whether an output depends on anything in a part of the input."""
        return any(needed.startswith(f"{part}/") for needed in self._needs[name])

    def is_unchanged(self, name: str, part: str = "received") -> bool:
        """Returns whether an output is the input of the same name, in a part of the input, unchanged or plus 0."""
        variable = self.outputs[name]
        equation = None if is_literal(variable) else self._made.get(variable)
        if equation is not None and equation.primitive.name == "add":
            first, second = equation.invars
            variable = first if self._is_zero(second) else variable
        return variable is self.inputs[f"{part}/{name}" if part else name]

    def copies_of_update(self, sends_updates: bool) -> set[str]:
        """Returns the reports that equal the update of params, which is sent anyway, up to a scalar factor."""
        updates = set()
        for name, variable in self.outputs.items():
            if name.startswith("upload/mean/params/"):
                of_server = self.inputs[name.replace("upload/mean", "received/variables")]
                updates.add(self._root(variable) if sends_updates else ("sub", self._root(variable), of_server))
        reports = {name: variable for name, variable in self.outputs.items() if name.startswith("upload/total/")}
        return {name for name, variable in reports.items() if self._root(variable) in updates}

    def _root(self, variable):
        """Returns the array of which this one is a multiple, or the operands if it is a difference."""
        equation = None if is_literal(variable) else self._made.get(variable)
        if equation is None:
            return repr(variable) if is_literal(variable) else variable
        match equation.primitive.name:
            case "neg" | "convert_element_type" | "copy":
                return self._root(equation.invars[0])
            case "sub":
                return "sub", *map(self._root, equation.invars)
            case "mul" | "div" as kind:
                first, second = equation.invars
                if self._is_number(second):
                    return self._root(first)
                if kind == "mul" and self._is_number(first):
                    return self._root(second)
        return variable

    def _is_number(self, variable):
        """Returns whether all entries are the same number."""
        equation = None if is_literal(variable) else self._made.get(variable)
        if equation is not None and equation.primitive.name == "broadcast_in_dim":
            return self._is_number(equation.invars[0])
        return not variable.aval.shape

    def _is_zero(self, variable):
        """Returns whether all entries are the constant 0."""
        if is_literal(variable):
            return not np.any(variable.val)
        equation = self._made.get(variable)
        is_filled = equation is not None and equation.primitive.name in ("broadcast_in_dim", "reshape")
        return is_filled and self._is_zero(equation.invars[0])
