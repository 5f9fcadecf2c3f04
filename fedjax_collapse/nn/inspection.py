"""The layers of a network and their shapes, found without computing anything."""

import functools
from collections import Counter

import flax.linen as nn

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import Outputs
from fedjax_collapse.nn.layers import Conv
from fedjax_collapse.nn.lowerings.convolution import Layer, choose_lowering
from fedjax_collapse.nn.model import LEVELS, Model


@functools.lru_cache(maxsize=256)
def convolutions(model: Model, batch_size: int) -> list[tuple[Layer, str]]:
    """Returns the network's convolutions in order of use, each with its lowering at that batch size."""
    found = []
    for conv, inputs in _calls(Conv, model):
        shape, size, how = (batch_size * inputs.shape[0], *inputs.shape[1:]), conv.kernel_size, conv.convolution
        kernel, dtype = (size, size, shape[-1] // conv.groups, conv.features), conv.dtype or inputs.dtype
        found.append((how.layer(shape, kernel, dtype), choose_lowering(shape, kernel, how, dtype)))
    return found


@functools.lru_cache(maxsize=256)
def layers_of_class(model: Model, kind: type[nn.Module]) -> list[nn.Module]:
    """Returns the network's layers of a class, in order of use, without their params."""
    return [layer for layer, _ in _calls(kind, model)]


@functools.lru_cache(maxsize=256)
def next_kernels(model: Model) -> tuple[str | None, ...]:
    """Returns the paths of the kernels that are applied first after each level, and to the features; None without one.

    If several layers read a level, such as a block's convolution and its shortcut, it is the kernel of the layer that
    is called first.
    """
    levels: set[str] = set()
    first: dict[str, str] = {}  # kernels by level
    found: list[str | None] = []
    scopes, inputs, variables = [], [], model.variable_shapes()

    def notice(call, args, kwargs, context):
        layer = context.module
        if context.method_name != "__call__":
            return call(*args, **kwargs)
        scopes.append(layer.scope.root)
        levels.update(*map(_sown, (scopes[0], scopes[-1])))  # a rematerialised block has a scope of its own
        if getattr(layer.get_variable("params", "kernel"), "ndim", 0) > 1:
            kernel = "/".join((*layer.path, "kernel"))
            inputs.append((kernel, args))
            first.update(dict.fromkeys(levels - first.keys(), kernel))
        outputs = call(*args, **kwargs)
        if isinstance(outputs, Outputs):  # the outermost module returns them last
            of_features = (kernel for kernel, read in inputs if any(array is outputs.features for array in read))
            found[:] = [*map(first.get, _sown(scopes[0])), next(of_features, None)]
        return outputs

    with nn.intercept_methods(notice):
        model.output_shapes(variables, levels=True)
    return tuple(found)


def _sown(scope):
    """Returns the paths of a scope's levels so far."""
    return ["/".join((*scope.path, path)) for path in masks.by_path(scope.variables().get(LEVELS, {}))]


def _calls(kind, model):
    """Returns the layers of a class that the network calls for one example, with their inputs."""
    found, variables = [], model.variable_shapes()

    def notice(call, args, kwargs, context):
        if isinstance(context.module, kind) and context.method_name == "__call__":
            found.append((context.module.clone(parent=None, name=context.module.name), args[0]))
        return call(*args, **kwargs)

    with nn.intercept_methods(notice):
        model.output_shapes(variables)
    return found


def count_lowerings(model: Model, batch_size: int) -> dict[str, int]:
    """Returns the number of convolutions that use each lowering at that batch size (``convolution.py``)."""
    return dict(sorted(Counter(lowering for _, lowering in convolutions(model, batch_size)).items()))
