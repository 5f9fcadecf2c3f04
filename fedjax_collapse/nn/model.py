"""A network together with the shape of its inputs and its task, as pure functions."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.core import masks
from fedjax_collapse.core._jax_compat import is_traced
from fedjax_collapse.core.randomness import Stream
from fedjax_collapse.core.records import Batch, Key, Outputs, PyTree, UserError, Variables
from fedjax_collapse.core.target import Target
from fedjax_collapse.nn.adapters import LoRA, adapted
from fedjax_collapse.nn.lowerings.sums import at_least_float32
from fedjax_collapse.nn.places import rows_at
from fedjax_collapse.nn.task import CLASSIFICATION, Task
from fedjax_collapse.schema import user_code
from fedjax_collapse.schema.options import Count, check_fields, check_key, check_value

LEVELS = "levels"  # the Linen collection of intermediate representations


@dataclasses.dataclass(frozen=True)
class Model:
    """A Linen network, the shape and type of its input, and its task.

    The module is called as ``module(inputs, mask, train)`` and returns ``Outputs``; ``mask`` marks the true rows, for
    layers that operate across the batch. A network of sequences [batch, length] with a label for each token returns a
    row for each token, [batch * length, ...]; its mask marks the sequences with a target. If it also takes ``places``,
    integers [rows], it returns only the rows of the tokens at these places; places beyond the last token are padding.

    Models with equal fields are equal, so they share compiled programs. Images larger than ``input_shape`` are cropped
    to their centre; training may crop them at random (``data/augment``).

    ``reinitialize`` changes the initial variables, for example ``nn.heads.orthogonal_head``; ``adapters`` adds low-rank
    adapters to layers (``LoRA``).

    Raises:
        UserError: if a field does not match its annotation.

    Examples:
        >>> model = Model(nn.SmallCNN(10, channels=(8, 16)), (32, 32, 3))
        >>> variables = model.init(jax.random.key(0))
        >>> regression = Model(nn.MLP(1, hidden=(16,)), (5,), task=REGRESSION)
    """

    module: flax.linen.Module
    input_shape: tuple[Count, ...]  # of one example; for images height, width, channels
    reinitialize: "Callable[[Model, Variables, Key], Variables] | None" = None
    task: Task = CLASSIFICATION
    input_dtype: type | str = float  # in the default precision; or an integer type, such as "int32"
    adapters: LoRA | None = None

    def __post_init__(self):
        check_fields(self)
        if callable(self.module):
            network = f"network {type(self.module).__name__}"
            user_code.check_signature(network, self.module.__call__, "inputs", "mask", by_name=["train"])
        object.__setattr__(self, "input_shape", tuple(map(int, self.input_shape)))
        values = {field.name: getattr(self.module, field.name, None) for field in dataclasses.fields(self.module)}
        if lists := {name: _as_tuple(value) for name, value in values.items() if isinstance(value, list)}:
            object.__setattr__(self, "module", self.module.clone(**lists))  # a list has no hash
        if not self.input_shape:
            raise UserError("Model: input_shape () is empty, expected the shape of one example, such as (32, 32, 3)")
        if not _is_real(self.input_dtype):
            raise UserError(f"Model: input_dtype {self.input_dtype!r}: expected a type of real numbers, such as float")

    def on(self, target: Target) -> "Model":
        """Returns the model compiled for ``target``, if its module has a field ``target``; otherwise the same model."""
        if not any(field.name == "target" for field in dataclasses.fields(self.module)):
            return self
        return self.with_module(target=target)

    def with_module(self, **options: Any) -> "Model":
        """Returns the model with the given options of its module replaced."""
        return dataclasses.replace(self, module=self.module.clone(**options))

    def check_inputs(self, shape: tuple[int, ...], augmented: tuple[int, ...]) -> None:
        """Raises UserError unless inputs of that shape have shape ``input_shape`` after augmentation."""
        if augmented != self.input_shape:
            after = "" if augmented == shape else f", after augmentation {augmented}"
            is_crop = len(augmented) == len(self.input_shape) == 3 and augmented[2] == self.input_shape[2]
            advice = "; an augmentation crops them, such as functools.partial(augment.crop, size=...)" * is_crop
            problem = f"model: its inputs have shape {self.input_shape}, those of the federation {shape}"
            raise UserError(f"{problem}{after}{advice}")

    def check_variables(self, what: str, variables: Variables) -> None:
        """Raises UserError unless ``variables`` have the names, shapes and dtypes of the model's variables."""
        check_value(what, variables, Variables)
        for name, part in variables._asdict().items():
            check_value(f"{what}: {name}", part, Mapping)
        found, expected = (masks.by_path(of._asdict()) for of in (variables, self.variable_shapes()))
        for path in sorted(found.keys() | expected.keys()):
            is_, should = _type_of(found.get(path)), _type_of(expected.get(path))
            if is_ != should:
                raise UserError(f"{what}: {path} is {is_}, expected {should}, as in Model.init(key)")

    def init(self, key: Key) -> Variables:
        """Returns initial variables; compiled, because eager initialisation is many times slower.

        Raises:
            UserError: if ``key`` is not a key, or if ``reinitialize`` does not return variables.
        """
        if is_traced(key):
            return _draw(self, key)
        check_key("Model.init: key", key)
        return _draw_compiled(self, key)

    def variable_shapes(self) -> Variables:
        """Returns the shapes and dtypes of the variables."""
        return _variable_shapes(self, jnp.result_type(float))

    def output_shapes(self, variables: Variables, levels: bool = False) -> Outputs:
        """Returns shapes and dtypes of features [1, d], logits [1, classes] and, if requested, levels.

        A network of tokens has a row for each token.
        """
        inputs = jax.ShapeDtypeStruct((1, *self.input_shape), jax.dtypes.canonicalize_dtype(self.input_dtype))
        batch = Batch(inputs, jax.ShapeDtypeStruct((1,), jnp.int32), jax.ShapeDtypeStruct((1,), bool))
        return _trace(self, lambda v, b: self.apply(v, b, train=False, levels=levels)[0], variables, batch)

    def initial_shapes(self) -> Outputs:
        """Returns ``output_shapes`` of initial variables, with the levels of the network."""
        return _initial_shapes(self, jnp.result_type(float))

    def apply(
        self, variables: Variables, batch: Batch, train: bool, key: Key | None = None, levels: bool = False
    ) -> tuple[Outputs, PyTree]:
        """Returns outputs and new running statistics (unchanged unless ``train``); without a key there is no dropout.

        Outputs have at least 32 bits. Those on the batch's ``views`` are ``Outputs.views``: BatchNorm normalises each
        view by its own statistics, and its running ones are updated by one view after the other.

        With ``levels``, outputs include the collection ``levels`` that the module sows.

        Raises:
            UserError: if the images are smaller than ``input_shape``.
        """
        outputs, batch_stats = self.apply_to_inputs(variables, batch, train, key, levels)
        if not batch.views:
            return outputs, batch_stats
        views: list[Outputs] = []
        for inputs in batch.views:
            own = None if key is None else jax.random.fold_in(key, len(views))
            start, view = variables._replace(batch_stats=batch_stats), batch._replace(inputs=inputs)
            of_view, batch_stats = self.apply_to_inputs(start, view, train, own, levels)
            views.append(of_view)
        return outputs._replace(views=tuple(views)), batch_stats

    def apply_to_inputs(
        self, variables: Variables, batch: Batch, train: bool, key: Key | None, levels: bool
    ) -> tuple[Outputs, PyTree]:
        """Returns ``apply`` without the batch's further views."""
        inputs, rngs = batch.inputs, None if key is None else {"dropout": key}
        if len(self.input_shape) == 3:
            inputs = _middle(inputs, *self.input_shape[:2])
        collections = ["batch_stats", LEVELS] if levels else ["batch_stats"]
        chosen = {"places": batch.places} if batch.places is not None and _takes_places(self.module) else {}
        with adapted(self.adapters, train):
            outputs, updated = self.module.apply(
                variables._asdict(), inputs, _of_inputs(batch), train=train, mutable=collections, rngs=rngs, **chosen
            )
        if LEVELS in updated:
            outputs = outputs._replace(levels=tuple(jax.tree.leaves(updated[LEVELS])))
        outputs = jax.tree.map(_of_32_bits, outputs)
        if batch.places is not None and not chosen:
            outputs = jax.tree.map(lambda rows: rows_at(rows, batch.places), outputs)
        return outputs, updated.get("batch_stats", variables.batch_stats)

    def batch_statistics(self, variables: Variables, batch: Batch) -> PyTree:
        """Returns the statistics of this batch in all layers with running statistics, in training mode.

        A batch updates running statistics linearly, with a momentum per layer. Updates from 0 and from 1 determine both
        the momentum and the batch's statistics. The compiler merges the two passes.
        """

        def updated_from(value):
            start = jax.tree.map(lambda leaf: jnp.full_like(leaf, value), variables.batch_stats)
            return self.apply(Variables(variables.params, start), batch, train=True)[1]

        return jax.tree.map(lambda zero, one: zero / (1 - (one - zero)), updated_from(0), updated_from(1))

    def mask(self, name: str) -> Variables:
        """Returns the mask of a named part of the network (``masks.py``), as a tree of Python bools.

        Raises:
            UserError: if the network has no such part.
        """
        check_value("network: part", name, str)
        return _mask(self, name)


@functools.lru_cache(maxsize=256)
def _mask(model, name):
    variables, layers = _variables_and_layers(model)
    with user_code.naming(f"network {type(model.module).__name__}"):
        return masks.named(name, variables, layers)


# ``dtype`` is JAX's current default for floats, which ``jax.enable_x64`` changes; it is part of the caches' keys.
@functools.lru_cache(maxsize=256)
def _variable_shapes(model, dtype):
    return _trace(model, model.init, jax.random.key(0))


@functools.lru_cache(maxsize=256)
def _initial_shapes(model, dtype):
    return model.output_shapes(model.variable_shapes(), levels=True)


def _trace(model, function, *arguments):
    """Returns the shapes of the function's outputs; the function calls the user's network."""
    shape = ", ".join(map(str, ["batch", *model.input_shape]))
    what = f"network {type(model.module).__name__}, called as module(inputs [{shape}], mask [batch], train)"
    return user_code.call(what, jax.eval_shape, function, *arguments)


@functools.lru_cache(maxsize=256)
def _variables_and_layers(model) -> tuple[Variables, Mapping[str, list[tuple[str, ...]]]]:
    """Returns the shapes of the variables, and the paths of the layers that declare a part of the network, by part."""
    found: dict[str, list] = {}

    def notice(call, args, kwargs, context):
        part = getattr(context.module, "part", None)
        if isinstance(part, str) and context.method_name == "__call__":
            found.setdefault(part, []).append(context.module.path)
        return call(*args, **kwargs)

    with flax.linen.intercept_methods(notice):
        variables = _trace(model, functools.partial(_module_variables, model), jax.random.key(0))
    return variables, found


def _type_of(leaf):
    """Returns the dtype in the default precision, and the shape, of an array as text."""
    if isinstance(leaf, (jax.Array, np.ndarray, jax.ShapeDtypeStruct)):
        return f"{jax.dtypes.canonicalize_dtype(leaf.dtype)}{list(leaf.shape)}"
    return "not there" if leaf is None else f"of type {type(leaf).__name__}"


def _of_32_bits(output):
    """Casts floats of 16 bits, for losses and metrics."""
    return at_least_float32(output) if jnp.issubdtype(jnp.result_type(output), jnp.floating) else output


def _as_tuple(value):
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


def _is_real(dtype):
    try:
        found = jnp.dtype(dtype)
    except TypeError:
        return False
    return dtype is not None and any(jnp.issubdtype(found, kind) for kind in (bool, jnp.integer, jnp.floating))


def _of_inputs(batch):
    """Returns the mask [len(inputs)]; if tokens have labels, True for sequences with a target."""
    if batch.places is not None:
        sequences = batch.places // batch.inputs.shape[1]
        return jnp.zeros(len(batch.inputs), bool).at[sequences].max(batch.mask, mode="drop")
    if len(batch.mask) == len(batch.inputs):
        return batch.mask
    return batch.mask.reshape(len(batch.inputs), -1).any(axis=1)


def _takes_places(module):
    return "places" in inspect.signature(module.__call__).parameters


def _middle(images, height, width):
    """Crops the centre of images, rounded as in torchvision's CenterCrop."""
    have = images.shape[1:3]
    if have == (height, width):
        return images
    if have[0] < height or have[1] < width:
        raise UserError(f"images of {have[0]} x {have[1]} pixels: the model expects at least {height} x {width}")
    top, left = round((have[0] - height) / 2), round((have[1] - width) / 2)
    return images[:, top : top + height, left : left + width]


def _module_variables(model, key):
    inputs = jnp.zeros((1, *model.input_shape), model.input_dtype)
    with adapted(model.adapters):
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


# a draw per layer is much code that runs once; optimising it would take ten times as long as everything else
_draw_compiled = jax.jit(_draw, static_argnums=0, compiler_options={"xla_backend_optimization_level": 0})
