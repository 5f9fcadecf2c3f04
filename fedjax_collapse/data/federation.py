"""A federation: examples on the device, who owns which, and the common test set."""

import weakref
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from fedjax_collapse.data.partition import Partition
from fedjax_collapse.hashing import digest
from fedjax_collapse.options import check_value
from fedjax_collapse.records import Examples, Ownership, UserError

STORAGES = ("device", "host")  # where examples lie


class Domains(NamedTuple):
    """Where the examples of a federation with feature shift come from; kept on the host."""

    names: tuple[str, ...]
    train: np.ndarray  # [training examples] int32 into names
    test: np.ndarray  # [test examples] int32

    @property
    def has_tests(self) -> np.ndarray:
        """[domains] whether there are test examples."""
        return np.bincount(self.test, minlength=len(self.names)) > 0


class Federation(NamedTuple):
    """Data of a run. Inputs stay as they are given (images uint8) and are normalised batch by batch.

    ``class_names`` is empty where labels are not those of classes.
    """

    train: Examples
    ownership: Ownership
    test: Examples
    class_names: tuple[str, ...]
    domains: Domains | None = None

    @classmethod
    def from_arrays(
        cls,
        images: np.ndarray,
        labels: np.ndarray,
        partition: Partition,
        test_images: np.ndarray,
        test_labels: np.ndarray,
        mean: float | tuple = 0.0,
        std: float | tuple = 1.0,
        class_names: tuple[str, ...] | None = None,
        capacity: int | None = None,
        domains: Domains | None = None,
        storage: str = "device",
    ) -> "Federation":
        """A federation from arrays in memory.

        Args:
            images: [examples, height, width] or [..., channels], uint8 or float; a network sees ``(images - mean) /
                std``.
            labels: [examples], integers from 0.
            partition: for each client the indices of its examples (``data.partition``).
            test_images, test_labels: the same for the common test set.
            mean, std: scalars or one per channel, in the units of ``images`` (0 to 255 for uint8).
            class_names: default "0", "1", ...
            capacity: rows of the index table, at least the largest client's size, which is the default. Federations of
                equal shapes share one compiled program; the results do not depend on it.
            domains: of every training and test example, if they come from several.
            storage: where the examples lie, ``device`` or ``host``; from there each round's cohort gets what it needs.

        Raises:
            UserError: shapes, labels or indices do not fit together, or there is no such storage.
        """
        images, test_images = _as_images("train", images), _as_images("test", test_images)
        labels, test_labels = (_check_labels(name, a) for name, a in (("train", labels), ("test", test_labels)))
        num_classes = 1 + max(labels.max(), test_labels.max())
        class_names = tuple(map(str, range(num_classes))) if class_names is None else tuple(class_names)
        check_value("data: class_names", class_names, tuple[str, ...])
        if len(set(class_names)) < len(class_names):
            raise UserError(f"data: class_names {', '.join(class_names)}: expected every one once")
        if len(class_names) < num_classes:
            raise UserError(f"data: label {num_classes - 1} has no name among {len(class_names)} class names")
        return cls.from_inputs(
            images, labels, partition, test_images, test_labels, mean=mean, std=std, class_names=class_names,
            capacity=capacity, domains=domains, storage=storage,
        )  # fmt: skip

    @classmethod
    def from_inputs(
        cls,
        inputs: np.ndarray,
        labels: np.ndarray,
        partition: Partition,
        test_inputs: np.ndarray,
        test_labels: np.ndarray,
        mean: float | tuple | None = None,
        std: float | tuple | None = None,
        class_names: tuple[str, ...] = (),
        capacity: int | None = None,
        domains: Domains | None = None,
        storage: str = "device",
    ) -> "Federation":
        """A federation of inputs of any shape and type: integers stay integers, other numbers become float32.

        Args:
            inputs: [examples, ...], such as token ids [examples, length] or a table [examples, columns].
            labels: [examples, ...]; integers from 0 for classes, floats for a regression.
            mean, std: a network sees ``(inputs - mean) / std``, scalars or one per entry of the last axis; None leaves
                the inputs as they are.
            class_names: needed where the task is a classification.

        The other arguments and errors are those of ``from_arrays``.
        """
        if storage not in STORAGES:
            raise UserError(f"federation: storage {storage!r}, expected one of {', '.join(STORAGES)}")
        labels, test_labels = _as_numbers("train labels", labels), _as_numbers("test labels", test_labels)
        train = _examples("train", inputs, labels, mean, std, storage)
        test = _examples("test", test_inputs, test_labels, mean, std, storage)
        if train.inputs.shape[1:] != test.inputs.shape[1:]:
            kind = "images" if train.inputs.ndim == 4 else "inputs"
            raise UserError(
                f"data: training {kind} are {train.inputs.shape[1:]}, test {kind} {test.inputs.shape[1:]}; "
                f"expected the same {'height, width and channels' if kind == 'images' else 'shape'}"
            )
        return cls(
            train=train,
            ownership=_ownership(partition, len(labels), capacity),
            test=test,
            class_names=class_names,
            domains=_check_domains(domains, labels, test_labels),
        )

    @property
    def num_clients(self) -> int:
        return len(self.ownership.sizes)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one example: height, width, channels of an image."""
        return self.train.inputs.shape[1:]

    def with_partition(self, partition: Partition, capacity: int | None = None) -> "Federation":
        """The same data, the same arrays even, divided otherwise; arguments and errors as of ``from_arrays``."""
        return self._replace(ownership=_ownership(partition, len(self.train.labels), capacity))

    def owned_rows(self) -> list[np.ndarray]:
        """The examples of every client, without padding."""
        rows, sizes = map(np.asarray, self.ownership)
        return [own[:size] for own, size in zip(rows, sizes, strict=True)]

    def class_counts(self) -> np.ndarray:
        """Examples of each class at each client: [clients, classes]."""
        labels = np.asarray(self.train.labels)
        return np.stack([np.bincount(labels[rows], minlength=self.num_classes) for rows in self.owned_rows()])

    def partition_arrays(self) -> dict[str, np.ndarray]:
        """What is saved of the partition: ``class_counts`` and ``class_names`` [classes]; with domains
        ``domain_counts`` [clients, domains] and ``domain_names`` [domains]."""
        arrays = {"class_counts": self.class_counts(), "class_names": np.array(self.class_names, str)}
        if self.domains is None:
            return arrays
        names, of_examples = self.domains.names, self.domains.train
        counts = [np.bincount(of_examples[rows], minlength=len(names)) for rows in self.owned_rows()]
        return arrays | {"domain_counts": np.stack(counts), "domain_names": np.array(names, str)}

    def own_tests(self) -> Ownership:
        """Every client's own part of the test set, on which its personal model is evaluated.

        With domains, all test examples of the client's domains; else the largest part of the test set in which the
        classes have the same shares as among the client's training examples, in the order of the test set.
        """
        labels = np.asarray(self.test.labels)
        if self.domains is None:
            of_class = [np.flatnonzero(labels == c) for c in range(self.num_classes)]
            parts = [_rows_in_proportion(of_class, counts) for counts in self.class_counts()]
        else:
            present = [np.unique(self.domains.train[rows]) for rows in self.owned_rows()]
            parts = [np.flatnonzero(np.isin(self.domains.test, domains)) for domains in present]
        return _as_table(parts, max(1, *map(len, parts)))

    def hashes(self) -> dict[str, str]:
        """SHA-256 of the data and of the partition, to tell whether two runs saw the same."""
        data = (self.train.inputs, self.train.labels, self.test.inputs, self.test.labels)
        return {"data": _digest_once(data), "partition": digest(self.owned_rows())}


def _as_images(name, images):
    """Images with an axis of channels, uint8 or float32."""
    images = np.asarray(images)
    images = images[..., None] if images.ndim == 3 else images
    if images.ndim != 4 or 0 in images.shape[1:]:
        raise UserError(
            f"{name} images: shape {images.shape}, expected [examples, height, width(, channels)], none of them 0"
        )
    return images if images.dtype == np.uint8 else _as_numbers(f"{name} images", images.astype(np.float32))


def _as_numbers(name, values):
    """Integers as they are but in 32 bits, all else as float32."""
    values = np.asarray(values)
    if values.dtype.kind in "iub":
        return values if values.dtype.itemsize <= 4 else values.astype(np.int32)
    if values.dtype.kind != "f":
        raise UserError(f"{name}: expected numbers, got {values.dtype}")
    if not np.all(np.isfinite(values)):
        raise UserError(f"{name}: NaN or infinity among the {'pixels' if 'images' in name else 'values'}; "
                        f"expected finite numbers")  # fmt: skip
    return values.astype(np.float32)


def _examples(name, inputs, labels, mean, std, storage):
    inputs = _as_numbers(f"{name} inputs", inputs)
    if len(inputs) != len(labels) or not len(labels):
        kind = "images" if inputs.ndim == 4 else "inputs"
        raise UserError(f"{name} data: {len(inputs)} {kind} but {len(labels)} labels")
    place = np.asarray if storage == "host" else jnp.asarray
    if mean is None and std is None:
        return Examples(place(inputs), place(labels), None, None)
    mean, std = (np.asarray(x if x is not None else default, np.float32) for x, default in ((mean, 0), (std, 1)))
    channels = inputs.shape[-1:]
    fits = {mean.shape, std.shape} <= {(), (1,), channels}
    if not fits or not np.all(np.isfinite(mean) & np.isfinite(std) & (std > 0)):
        expected = f"expected finite numbers, one or {channels[0]} of them, and std above 0"
        raise UserError(f"data: mean {mean.tolist()} and std {std.tolist()}; {expected}")
    mean, std = (np.broadcast_to(x, channels) for x in (mean, std))
    return Examples(*map(place, (inputs, labels, mean, std)))


def _check_labels(name, labels):
    labels = np.asarray(labels)
    if labels.ndim != 1 or not len(labels) or not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0:
        raise UserError(
            f"{name} labels: expected at least one integer >= 0 in one dimension, got {labels.dtype} {labels.shape}"
        )
    return labels.astype(np.int32)


def _ownership(partition, num_examples, capacity):
    partition = list(map(np.asarray, partition))
    for client, rows in enumerate(partition):
        if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
            raise UserError(
                f"partition: client {client} has {rows.dtype}{list(rows.shape)}; expected integers in one dimension"
            )
    sizes = np.array([len(rows) for rows in partition], np.int32)
    if not len(sizes) or not sizes.min():
        raise UserError(f"partition: every client needs at least one example, got sizes {sizes.tolist()}")
    every = np.concatenate(partition)
    if every.min() < 0 or every.max() >= num_examples:
        raise UserError(f"partition: index {every.max()} or {every.min()} is outside the {num_examples} examples")
    capacity = sizes.max() if capacity is None else capacity
    if capacity < sizes.max():
        raise UserError(
            f"federation: capacity {capacity} is less than the {sizes.max()} examples of the largest client"
        )
    return _as_table(partition, capacity)


def _as_table(parts, capacity):
    rows = np.zeros((len(parts), capacity), np.int32)
    for client, owned in enumerate(parts):
        rows[client, : len(owned)] = owned
    return Ownership(jnp.asarray(rows), jnp.asarray([len(owned) for owned in parts], jnp.int32))


def _rows_in_proportion(of_class, counts):
    """As many rows of each class as fit, in proportion to ``counts``; at least one of the most frequent class."""
    scale = min((len(rows) / count for rows, count in zip(of_class, counts, strict=True) if count), default=0)
    kept = np.floor(scale * counts + 1e-9).astype(int)
    kept[counts.argmax()] = max(kept[counts.argmax()], 1)
    return np.sort(np.concatenate([rows[:count] for rows, count in zip(of_class, kept, strict=True)]))


def _check_domains(domains, labels, test_labels):
    if domains is None:
        return None
    train, test = (np.asarray(part, np.int32) for part in domains[1:])
    for name, part, expected in (("train", train, labels), ("test", test, test_labels)):
        if part.shape != expected.shape:
            raise UserError(f"{name} domains: shape {part.shape}, expected one per example, {expected.shape}")
        if part.min() < 0 or part.max() >= len(domains.names):
            raise UserError(f"{name} domains: {part.max()} or {part.min()} is none of the {len(domains.names)} names")
    return Domains(tuple(domains.names), train, test)


_digests: dict[tuple[int, ...], tuple[list, str]] = {}


def _digest_once(arrays) -> str:
    """The hash of arrays that nobody changes: computed once, however many federations share them."""
    key = tuple(map(id, arrays))
    kept = _digests.get(key)
    if kept is None or any(reference() is not array for reference, array in zip(kept[0], arrays, strict=True)):
        _digests[key] = kept = list(map(weakref.ref, arrays)), digest(arrays)
    return kept[1]
