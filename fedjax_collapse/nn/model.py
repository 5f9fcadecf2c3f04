"""A network with the shape of its inputs and the task that it learns, as pure functions."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.core import masks, user_code
from fedjax_collapse.core._jax_compat import is_traced
from fedjax_collapse.core.options import Count, check_fields, check_key, check_value
from fedjax_collapse.core.randomness import Stream
from fedjax_collapse.core.records import Batch, Key, Outputs, PyTree, UserError, Variables
from fedjax_collapse.core.target import Target
from fedjax_collapse.nn.task import CLASSIFICATION, Task

LEVELS = "levels"  # Linen's collection of what a network has on its way to the features


@dataclasses.dataclass(frozen=True)
class Model:
    """A Linen network, the shape and type of its input, and its task.

    The module is called as ``module(inputs, mask, train)`` and returns ``Outputs``; ``mask`` marks the true rows, for
    layers that look across the batch. Two models of equal modules are equal, so nothing recompiles for them. Of images
    larger than ``input_shape`` it sees the middle: of those that training crops to that shape (``data/augment.py``).
    ``reinitialize``: what to make of the module's own initial variables, such as ``masks.orthogonal_head``.

    Raises:
        UserError: one of these is not what its annotation says.
    """

    module: flax.linen.Module
    input_shape: tuple[Count, ...]  # of one example: height, width, channels of an image
    reinitialize: "Callable[[Model, Variables, Key], Variables] | None" = None
    task: Task = CLASSIFICATION
    input_dtype: type | str = float  # as it is in the default precision; or an integer type, such as "int32"

    def __post_init__(self):
        check_fields(self)
        object.__setattr__(self, "input_shape", tuple(map(int, self.input_shape)))
        if not self.input_shape:
            raise UserError("Model: input_shape () is empty, expected the shape of one example, such as (32, 32, 3)")
        if not _is_real(self.input_dtype):
            raise UserError(f"Model: input_dtype {self.input_dtype!r}: expected a type of real numbers, such as float")

    def on(self, target: Target) -> "Model":
        """The same, compiled for that target, if the module can be told of it: if it has a field ``target``."""
        if not any(field.name == "target" for field in dataclasses.fields(self.module)):
            return self
        return self.with_module(target=target)

    def with_module(self, **options: Any) -> "Model":
        """The same with other options of its module."""
        return dataclasses.replace(self, module=self.module.clone(**options))

    def check_inputs(self, shape: tuple[int, ...], augmented: tuple[int, ...]) -> None:
        """Raises UserError if inputs of that shape, as ``augmented`` in training, are not the model's."""
        if augmented != self.input_shape:
            after = "" if augmented == shape else f", after augmentation {augmented}"
            is_crop = len(augmented) == len(self.input_shape) == 3 and augmented[2] == self.input_shape[2]
            advice = "; an augmentation crops them, such as functools.partial(augment.crop, size=...)" * is_crop
            problem = f"model: its inputs have shape {self.input_shape}, those of the federation {shape}"
            raise UserError(f"{problem}{after}{advice}")

    def check_variables(self, what: str, variables: Variables) -> None:
        """Raises UserError unless ``variables`` have the names, shapes and types of the model's own."""
        check_value(what, variables, Variables)
        for name, part in variables._asdict().items():
            check_value(f"{what}: {name}", part, Mapping)
        found, expected = (masks.by_path(of._asdict()) for of in (variables, self.variable_shapes()))
        for path in sorted(found.keys() | expected.keys()):
            is_, should = _type_of(found.get(path)), _type_of(expected.get(path))
            if is_ != should:
                raise UserError(f"{what}: {path} is {is_}, expected {should}, as in Model.init(key)")

    def init(self, key: Key) -> Variables:
        """Initial variables; compiled, because eager initialisation is many times slower.

        Raises:
            UserError: ``key`` is none, or ``reinitialize`` returns something else.
        """
        if not is_traced(key):
            check_key("Model.init: key", key)
        return (_draw if is_traced(key) else _draw_compiled)(self, key)

    def variable_shapes(self) -> Variables:
        """Shapes and dtypes of its variables."""
        return _trace(self, self.init, jax.random.key(0))

    def output_shapes(self, variables: Variables, levels: bool = False) -> Outputs:
        """Shapes and dtypes of features [1, d], logits [1, classes], and of the levels if asked for."""
        inputs = jax.ShapeDtypeStruct((1, *self.input_shape), jax.dtypes.canonicalize_dtype(self.input_dtype))
        batch = Batch(inputs, jax.ShapeDtypeStruct((1,), jnp.int32), jax.ShapeDtypeStruct((1,), bool))
        return _trace(self, lambda v, b: self.apply(v, b, train=False, levels=levels)[0], variables, batch)

    def initial_shapes(self) -> Outputs:
        """``output_shapes`` of initial variables, with the levels that the network offers."""
        return _initial_shapes(self, jnp.result_type(float))

    def apply(
        self, variables: Variables, batch: Batch, train: bool, key: Key | None = None, levels: bool = False
    ) -> tuple[Outputs, PyTree]:
        """Outputs and the new running statistics (unchanged unless ``train``); without a key nothing is dropped out.

        ``levels``: also those that the module has sown in the collection of that name, as those of ``nn`` do.

        Raises:
            UserError: the images are smaller than ``input_shape``.
        """
        inputs, rngs = batch.inputs, None if key is None else {"dropout": key}
        if len(self.input_shape) == 3:
            inputs = _middle(inputs, *self.input_shape[:2])
        collections = ["batch_stats", LEVELS] if levels else ["batch_stats"]
        outputs, updated = self.module.apply(
            variables._asdict(), inputs, batch.mask, train=train, mutable=collections, rngs=rngs
        )
        if LEVELS in updated:
            outputs = outputs._replace(levels=tuple(jax.tree.leaves(updated[LEVELS])))
        return outputs, updated.get("batch_stats", variables.batch_stats)

    def batch_statistics(self, variables: Variables, batch: Batch) -> PyTree:
        """What the layers with running statistics measure in this batch, in training mode.

        A batch moves running statistics linearly, by a share that is the layer's own: from starts at 0 and at 1 one
        sees both the share and the measurement. The two passes are one to the compiler.
        """

        def moved_from(value):
            start = jax.tree.map(lambda leaf: jnp.full_like(leaf, value), variables.batch_stats)
            return self.apply(Variables(variables.params, start), batch, train=True)[1]

        return jax.tree.map(lambda zero, one: zero / (1 - (one - zero)), moved_from(0), moved_from(1))

    def mask(self, name: str) -> Variables:
        """The part of the network of that name (``masks.py``), as a tree of Python bools.

        Raises:
            UserError: the network has no such part.
        """
        check_value("network: part", name, str)
        return _mask(self, name)


@functools.lru_cache(maxsize=256)
def _mask(model, name):
    variables = _trace(model, functools.partial(_module_variables, model), jax.random.key(0))
    try:
        return masks.named(name, variables, functools.partial(_named_layers, model))
    except UserError as error:
        raise UserError(f"network {type(model.module).__name__}: {error}") from error


@functools.lru_cache(maxsize=256)
def _initial_shapes(model, dtype):
    """``dtype``: of floats as JAX makes them now, which ``jax.enable_x64`` changes."""
    return model.output_shapes(model.variable_shapes(), levels=True)


def _trace(model, function, *arguments):
    """The shapes of what the function returns, which calls the user's network."""
    shape = ", ".join(map(str, ["batch", *model.input_shape]))
    what = f"network {type(model.module).__name__}, called as module(inputs [{shape}], mask [batch], train)"
    return user_code.call(what, jax.eval_shape, function, *arguments)


def _named_layers(model) -> Mapping[str, list[tuple[str, ...]]]:
    """Paths of the layers that say which part of the network they are, by part."""
    found: dict[str, list] = {}

    def notice(call, args, kwargs, context):
        part = getattr(context.module, "part", None)
        if isinstance(part, str) and context.method_name == "__call__":
            found.setdefault(part, []).append(context.module.path)
        return call(*args, **kwargs)

    with flax.linen.intercept_methods(notice):
        jax.eval_shape(functools.partial(_module_variables, model), jax.random.key(0))
    return found


def _type_of(leaf):
    """Of an array its type, in the default precision, and shape."""
    if isinstance(leaf, (jax.Array, np.ndarray, jax.ShapeDtypeStruct)):
        return f"{jax.dtypes.canonicalize_dtype(leaf.dtype)}{list(leaf.shape)}"
    return "not there" if leaf is None else f"of type {type(leaf).__name__}"


def _is_real(dtype):
    try:
        found = jnp.dtype(dtype)
    except TypeError:
        return False
    return dtype is not None and any(jnp.issubdtype(found, kind) for kind in (bool, jnp.integer, jnp.floating))


def _middle(images, height, width):
    """That much of the images' middle, rounded as by torchvision's CenterCrop."""
    have = images.shape[1:3]
    if have == (height, width):
        return images
    if have[0] < height or have[1] < width:
        raise UserError(f"images of {have[0]} x {have[1]} pixels: the model expects at least {height} x {width}")
    top, left = round((have[0] - height) / 2), round((have[1] - width) / 2)
    return images[:, top : top + height, left : left + width]


def _module_variables(model, key):
    inputs = jnp.zeros((1, *model.input_shape), model.input_dtype)
    variables = model.module.init(key, inputs, jnp.ones(1, bool), train=False)
    return Variables(variables.get("params", {}), variables.get("batch_stats", {}))


def _draw(model, key):
    variables = _module_variables(model, key)
    if model.reinitialize is None:
        return variables
    arguments = (model, variables, Stream.HEAD.key(key))
    variables = user_code.call("Model: reinitialize", model.reinitialize, *arguments)
    check_value("Model: reinitialize: it returned", variables, Variables)
    return variables


# one draw a layer is much code that runs once: to optimise it would take ten times as long as all the rest
_draw_compiled = jax.jit(_draw, static_argnums=0, compiler_options={"xla_backend_optimization_level": 0})
