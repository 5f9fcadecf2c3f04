"""The measurement ``layers``: where in the network representations collapse, and in which part of a round.

The representations are the network's levels (``nn.network.as_level``), from its first block to its last, and then the
features. Batches are streamed: only their moments are stored, so memory does not grow with the number of examples.
"""

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.analysis import neural_collapse
from fedjax_collapse.analysis.moments import Moments, class_moments, merged
from fedjax_collapse.analysis.spectrum import effective_rank, table
from fedjax_collapse.analysis.updates import decompose
from fedjax_collapse.core import masks
from fedjax_collapse.core.records import Examples, Variables
from fedjax_collapse.data.batches import blocks_of, get_batch
from fedjax_collapse.data.federation import Federation
from fedjax_collapse.measurements import probe
from fedjax_collapse.nn.adapters import merged as without_adapters
from fedjax_collapse.nn.inspection import next_kernels
from fedjax_collapse.nn.model import Model
from fedjax_collapse.run.measurement import MeasurementView

_BATCH = 256
_NUMBERS = ("effective_rank", "nc1", "probe", "within_share", "alignment")  # [levels]
_LOCAL = tuple(f"local_{name}" for name in (*_NUMBERS, "spectrum"))
_OWN = tuple(f"own_{prefix}{name}" for prefix in ("", "received_", "local_") for name in _NUMBERS)


def layers(view: MeasurementView) -> dict[str, np.ndarray]:
    """Rank, collapse and linear-probe accuracy of the representation after each block, trained and averaged.

    Of the model as it was received in the round (``received_``), as watched clients trained it (``local_``), and as the
    server then averaged it, on the test set and, ``own_``, on the training examples of each watched client. A probe is
    fitted to the same training examples as in ``linear_probe``, also where it is scored on the client's.

    Two numbers are ours, after Zhu et al. (arXiv 2502.03231), whose exact normalisations we do not know:
    ``within_share``, ``neural_collapse.within_share``; and ``alignment``, that of the level with the weight that is
    applied next, as a matrix [width, everything else], in the first ``min(C - 1, width, everything else)`` directions
    of both, fewer if the weight has a lower rank. It is the first weight if several read the level, such as a block's
    convolution and its shortcut, and the classifier's for the features. It is NaN without such a weight, a param
    ``kernel``, as for logits that are products with an embedding, or if it is of a depthwise convolution.

    Arrays: ``effective_rank``, ``nc1``, ``probe``, ``within_share`` and ``alignment`` [levels], the same with
    ``received_``; with ``local_`` [watched, levels], NaN for a client outside the cohort; with ``own_`` in front of all
    of them [watched, levels]. ``spectrum`` [levels, widest], eigenvalues of the covariance on the test set, NaN beyond
    the level's width, with ``received_`` and ``local_``. Without classes, all but rank and spectrum are NaN.
    """
    federation, owned = view.federation, view.federation.owned_rows()
    server, received = (_Levels(view.model, federation, v) for v in (view.server.variables, view.received))
    arrays = server.measure(federation.test) | _prefixed("received_", received.measure(federation.test))
    of_clients = []
    for client, model in view.local.items():
        local = _Levels(view.model, federation, model.variables)
        found = _prefixed("local_", local.measure(federation.test))
        for prefix, levels in (("", server), ("received_", received), ("local_", local)):
            found |= _prefixed(f"own_{prefix}", levels.measure(federation.train, owned[client]))
        of_clients.append(found)
    for name in (*_LOCAL, *_OWN):
        like = arrays["spectrum" if name == "local_spectrum" else "nc1"]
        arrays[name] = view.stacked([found[name] for found in of_clients], like)
    return arrays


def passes(federation: Federation, num_watched: int) -> int:
    """Returns how many examples are passed through the network each time that ``layers`` measures."""
    sizes = np.sort(np.asarray(federation.ownership.sizes))[::-1][:num_watched]
    of_model = len(federation.test.labels) + len(probe.training_rows(federation))
    return (2 + num_watched) * of_model + 3 * int(sizes.sum())


layers.passes = passes  # announced before the first round


class _Levels:
    """The representations of a model, with their linear probes."""

    def __init__(self, model: Model, federation: Federation, variables: Variables):
        self.model, self.variables = model, variables
        labels = np.asarray(federation.train.labels)
        self.has_classes = labels.ndim == 1 and labels.dtype.kind in "iu"
        known = labels, np.asarray(federation.test.labels)
        self.num_classes = probe.num_classes(model, *known) if self.has_classes else 1
        self.read = list(_read_directions(model, variables, self.num_classes - 1))
        self.heads = []
        if self.has_classes:
            moments, _ = self._stream(federation.train, probe.training_rows(federation))
            self.heads = list(map(probe.fit_ridge, moments))

    def measure(self, examples: Examples, rows: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Returns the arrays [levels] and ``spectrum``, on some rows or all."""
        moments, correct = self._stream(examples, np.arange(len(examples.labels)) if rows is None else rows)
        spectra = [of_level.spectrum for of_level in moments]
        return {
            "effective_rank": np.array(list(map(effective_rank, spectra))),
            "nc1": np.array(list(map(neural_collapse.variability, moments))),
            "probe": correct / moments[0].num_examples,
            "within_share": np.array(list(map(neural_collapse.within_share, moments))),
            "alignment": np.array(list(map(neural_collapse.alignment, moments, self.read))),
            "spectrum": table(spectra, max(map(len, spectra))),
        }

    def _stream(self, examples: Examples, rows: np.ndarray) -> tuple[list[Moments], np.ndarray]:
        """Returns the moments of every level, and how many examples its probe classifies correctly, NaN without one."""
        moments: list[Moments] = []
        correct = 0.0 if self.heads else np.nan
        for levels, labels in self._batches(examples, rows):
            classes = labels if self.has_classes else np.zeros(len(labels), int)
            shifts = [of_level.shift for of_level in moments] or [None] * len(levels)
            found = [class_moments(f, classes, self.num_classes, shift=s) for f, s in zip(levels, shifts, strict=True)]
            moments = [merged(*pair) for pair in zip(moments, found, strict=True)] if moments else found
            if self.heads:
                shares = [probe.accuracy(head, f, labels) for head, f in zip(self.heads, levels, strict=True)]
                correct = correct + len(labels) * np.array(shares)
        return moments, np.broadcast_to(correct, len(moments))

    def _batches(self, examples: Examples, rows: np.ndarray) -> Iterator[tuple[list[np.ndarray], np.ndarray]]:
        """Yields the levels [batch, width] and labels of at most ``_BATCH`` rows, or of their tokens, in order."""
        for block, is_true in blocks_of(examples, rows, min(_BATCH, len(examples.labels))):
            levels, labels, mask = jax.device_get(_levels(self.model, self.variables, block, is_true))
            yield [level[mask] for level in levels], labels[mask]


@functools.partial(jax.jit, static_argnums=0)
def _levels(model, variables, block, mask):
    batch = get_batch(block, jnp.arange(len(mask)), mask)
    outputs, _ = model.apply(variables, batch, train=False, levels=True)
    return (*outputs.levels, outputs.features), batch.labels, batch.mask


def _read_directions(model: Model, variables: Variables, most: int) -> Iterator[np.ndarray]:
    """Yields, for every level, at most so many directions [width, k] that the next weight reads; k is 0 without one."""
    kernels, outputs = masks.by_path(without_adapters(variables).params), model.initial_shapes()
    for path, level in zip(next_kernels(model), (*outputs.levels, outputs.features), strict=True):
        width, kernel = level.shape[-1], kernels.get(path or "")
        if kernel is None or kernel.shape[-2] % width:
            kernel = np.zeros((width, 1))  # which has no directions
        of_channels = np.asarray(kernel).reshape(-1, width, kernel.shape[-1]).swapaxes(0, 1)  # also of flattened pixels
        yield decompose(of_channels.reshape(width, -1), most).inputs


def _prefixed(prefix, arrays):
    return {f"{prefix}{name}": array for name, array in arrays.items()}
