"""A federation: the examples, their owners, and a common test set."""

import dataclasses
from pathlib import Path
from typing import Annotated, NamedTuple

import jax
import numpy as np

from fedjax_collapse.core.hashing import digest, digest_once
from fedjax_collapse.core.records import Examples, Ownership, UserError
from fedjax_collapse.data import arrays
from fedjax_collapse.data.domains import Domains, checked_domains
from fedjax_collapse.data.own_split import OwnSplit
from fedjax_collapse.data.ownership import as_table, owned, ownership, rows_in_proportion, rows_of
from fedjax_collapse.data.partition import Partition
from fedjax_collapse.data.source import OF_TOKENS, PAD
from fedjax_collapse.data.sources import Source
from fedjax_collapse.data.store import Store, open_store
from fedjax_collapse.schema.options import Count, Natural, check_value

_IN_MEMORY = ("device", "host")
STORAGES = (*_IN_MEMORY, "disk")  # of the examples
_BLOCK = 2**12  # labels of a store that are read at a time
_MOST_COUNTED = 10_000  # clients of a store whose class counts are saved with a run


class Federation(NamedTuple):
    """The data of a run. Inputs are stored as given (images as uint8) and normalised batch by batch.

    ``class_names`` is empty if labels are not class labels. ``tests`` and ``validation`` are each client's own rows of
    ``test`` and ``train``; without them, ``own_tests`` takes parts of the common test set. ``client_names`` is empty
    without natural clients. ``task`` names the task (``nn/task.py``). The server's model is also evaluated on
    ``common_validation``, examples that no client owns.
    """

    train: Examples
    ownership: Ownership
    test: Examples
    class_names: tuple[str, ...]
    domains: Domains | None = None
    tests: Ownership | None = None
    validation: Ownership | None = None
    client_names: tuple[str, ...] = ()
    task: str = "classification"
    common_validation: Examples | None = None

    @classmethod
    def from_source(
        cls, source: Source, partition: Partition, capacity: int | None = None, storage: str = "device"
    ) -> "Federation":
        """Returns a federation of a data source; for the other arguments and for errors, see ``from_arrays``.

        Examples:
            >>> source = sources.digits()
            >>> federation = Federation.from_source(source, partition.iid(source.labels, num_clients=5))
            >>> federation.num_clients, federation.num_classes, federation.input_shape
            (5, 10, (8, 8, 1))
        """
        given = source.domain_names, source.domains, source.test_domains
        domains = None if source.domains is None else Domains(*given)
        images, labels = arrays.as_array("train images", source.images), arrays.as_array("train labels", source.labels)
        make = cls.from_inputs if images.ndim == 2 or labels.ndim > 1 else cls.from_arrays
        options = dict(mean=source.mean, std=source.std)
        if images.ndim == 2 and images.dtype.kind in "iu":  # ids of tokens
            options = {}
        if source.task in OF_TOKENS:
            options["pad"] = PAD
        made = make(
            images, labels, partition, source.test_images, source.test_labels,
            class_names=source.class_names, capacity=capacity, domains=domains, storage=storage, **options,
        )  # fmt: skip
        made = made._replace(task=source.task)
        if source.validation_images is None:
            return made
        images, labels = source.validation_images, arrays.as_numbers("validation labels", source.validation_labels)
        if make == cls.from_arrays:
            images, labels = arrays.as_images("validation", images), arrays.as_labels("validation labels", labels)
        arrays.check_named(made.class_names, "validation", labels, of_tokens="pad" in options)
        return made._replace(common_validation=_examples("validation", images, labels, storage=storage, **options))

    @classmethod
    def from_split(
        cls,
        source: Source,
        partition: Partition,
        split: OwnSplit = OwnSplit(),  # noqa: B008
        capacity: int | None = None,
        storage: str = "device",
    ) -> "Federation":
        """Returns a federation in which every client is tested on a part of its own examples.

        The common test set is the union of these parts. For the other arguments and for errors, see ``from_arrays``.

        Args:
            source: the data; its training and its test part are pooled.
            partition: the indices of each client's examples in the pooled data (``source.pooled().labels``).
            split: the division of each client's examples.

        Examples:
            >>> source = sources.digits()
            >>> parts = partition.iid(source.pooled().labels, num_clients=5)
            >>> federation = Federation.from_split(source, parts)
            >>> federation.ownership.sizes.tolist(), federation.tests.sizes.tolist()
            ([270, 270, 269, 269, 269], [90, 90, 90, 90, 90])
        """
        pool = source.pooled()
        partition = owned(partition, most=len(pool.labels))
        ownership(partition, len(pool.labels), capacity)  # raises for indices that are outside
        divided = split.divide(partition, pool.labels)
        tested = np.concatenate(divided.test)
        source = pool._replace(
            test_images=pool.images[tested],
            test_labels=pool.labels[tested],
            test_domains=None if pool.domains is None else pool.domains[tested],
        )
        federation = cls.from_source(source, divided.train, capacity, storage)
        ends = np.cumsum([len(rows) for rows in divided.test])
        tests = np.split(np.arange(len(tested)), ends[:-1])
        return federation._replace(tests=_table(tests), validation=_table(divided.validation))

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
        channels_first: bool = False,
    ) -> "Federation":
        """Returns a federation of images in memory.

        Args:
            images: [examples, height, width] or [..., channels], uint8 or numbers that float32 can represent; the input
                of the network is ``(images - mean) / std``.
            labels: [examples], integers from 0.
            partition: the indices of each client's examples (``data.partition``).
            test_images, test_labels: the common test set.
            mean, std: scalars or one per channel, in the units of ``images`` (0 to 255 for uint8).
            class_names: by default "0", "1", ... up to the largest label, which must not be far above the number of
                examples; () if labels are not classes.
            capacity: number of columns of the index table, by default the size of the largest client. Federations with
                equal shapes share one compiled program; results do not depend on it.
            domains: the domains of the training and test examples, if there are several.
            storage: where the examples are stored, ``device`` or ``host``; with ``host``, the examples of each round's
                cohort are sent to the device.
            channels_first: whether images are [examples, channels, height, width], as in PyTorch.

        Raises:
            UserError: if shapes, labels or indices are inconsistent, or if ``storage`` is unknown.
        """
        check_value("federation: channels_first", channels_first, bool)
        images = arrays.as_images("train", images, channels_first)
        test_images = arrays.as_images("test", test_images, channels_first)
        labels, test_labels = arrays.as_labels("train labels", labels), arrays.as_labels("test labels", test_labels)
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
        class_names: tuple[str, ...] | None = None,
        capacity: int | None = None,
        domains: Domains | None = None,
        storage: str = "device",
        pad: Natural | None = None,
    ) -> "Federation":
        """Returns a federation of inputs of any shape: integers stay integers, other numbers become float32.

        Args:
            inputs: [examples, ...], such as token ids [examples, length] or a table [examples, columns].
            labels: [examples, ...]; integers from 0 for classes, floats for regression.
            mean, std: the input of the network is ``(inputs - mean) / std``; scalars or one per entry of the last axis,
                None for no normalisation.
            class_names: () if labels are not classes. The default is as in ``from_arrays`` for labels integers
                [examples], else ().
            pad: the label of tokens without a target, if every token has a label, integers [examples, length]. Losses,
                class counts and measurements then count tokens; sizes of clients and batches count sequences.

        For the other arguments and for errors, see ``from_arrays``.
        """
        check_value("federation: storage", storage, Annotated[str, _IN_MEMORY])
        labels, test_labels = arrays.as_numbers("train labels", labels), arrays.as_numbers("test labels", test_labels)
        if class_names is None:
            class_names = arrays.names_by_number(labels, test_labels)
        class_names = arrays.as_names("data: class_names", class_names)
        for name, of_part in (("train", labels), ("test", test_labels)):
            arrays.check_named(class_names, name, of_part, of_tokens=pad is not None)
        check_value("federation: pad", pad, Natural | None)
        train = _examples("train", inputs, labels, mean, std, storage, pad)
        test = _examples("test", test_inputs, test_labels, mean, std, storage, pad)
        for kind in ("inputs", "labels"):
            shape, test_shape = (getattr(part, kind).shape[1:] for part in (train, test))
            if shape != test_shape:
                raise UserError(f"data: training {kind} are {shape}, test {kind} {test_shape}; expected the same shape")
        return cls(
            train=train,
            ownership=ownership(partition, len(labels), capacity),
            test=test,
            class_names=class_names,
            domains=checked_domains(domains, labels, test_labels),
        )

    @classmethod
    def from_store(
        cls,
        folder: Path | str,
        clients: int | None = None,
        examples_per_client: int | None = None,
        storage: str = "disk",
    ) -> "Federation":
        """Returns the federation of a store on disk (``data.store``), whose examples are read when their clients train.

        Only the index is read, a few bytes per client. Draw cohorts with ``engine.HostUniform``.

        Args:
            folder: the store.
            clients: the first clients of the store; by default all.
            examples_per_client: the most examples of a client, the first ones; by default all.
            storage: ``disk``; ``host`` or ``device`` read everything into memory.

        Raises:
            UserError: the folder is not a store, is damaged, lacks test rows, or has fewer clients.
        """
        check_value("federation: clients", clients, Count | None)
        check_value("federation: examples_per_client", examples_per_client, Count | None)
        check_value("federation: storage", storage, Annotated[str, STORAGES])
        store = open_store(folder)
        store = store if clients is None else store.first(clients)
        if store.offsets[-1] > (most := np.iinfo(np.int32).max):
            raise UserError(f"{folder}: {store.offsets[-1]} rows, expected at most {most}; set clients")
        limited = dataclasses.replace(store, most=examples_per_client)
        stored = Ownership(limited, limited.sizes)
        mean, std, task = (store.facts[name] for name in ("mean", "std", "task"))
        pad = PAD if task in OF_TOKENS else None
        if storage != "disk":
            inputs, labels, *test = map(np.array, (store.inputs, store.labels, *store.test))  # no longer mapped
            store.verify(gathered=(inputs, labels))
            made = cls.from_inputs(
                inputs, labels, rows_of(stored), *test, mean, std, store.class_names, storage=storage, pad=pad
            )
            return made._replace(task=task)
        constants = normalization(mean, std, store.inputs.shape[-1:])
        pad = None if pad is None else padding("train", store.labels, pad)
        parts = (store.inputs, store.labels), store.test
        train, test = (Examples(*arrays, *constants, pad=pad) for arrays in parts)
        return cls(train, stored, test, store.class_names, task=task)

    def __repr__(self) -> str:
        train, test, kind = len(self.train.labels), len(self.test.labels), list(self.input_shape)
        of_classes = f", {self.num_classes} classes" if self.class_names else ""
        return f"Federation({self.num_clients} clients, {train} training and {test} test examples {kind}{of_classes})"

    @property
    def num_clients(self) -> int:
        return len(self.ownership.sizes)

    @property
    def store(self) -> Store | None:
        """The store of the examples; None if they are in memory."""
        return self.ownership.rows if isinstance(self.ownership.rows, Store) else None

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def num_targets(self) -> int:
        """The number of labels of an example: its length if every token has one, else 1."""
        return 1 if self.train.pad is None else self.train.labels.shape[1]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one example; for images height, width, channels."""
        return self.train.inputs.shape[1:]

    @property
    def input_dtype(self) -> type | str:
        """The type of a network's inputs: int32 if they are ids, which are not normalised."""
        is_normalised = self.train.mean is not None
        return float if is_normalised or self.train.inputs.dtype.kind not in "iu" else "int32"

    def with_partition(self, partition: Partition, capacity: int | None = None) -> "Federation":
        """Returns the same arrays with another partition and without ``tests`` and names of clients.

        For arguments and errors, see ``from_arrays``.
        """
        table = ownership(partition, len(self.train.labels), capacity)
        return self._replace(ownership=table, tests=None, validation=None, client_names=())

    def with_tests(self, rows: Partition) -> "Federation":
        """Returns the federation with these rows of the test set as each client's own test rows; a client may have
        none.

        Raises:
            UserError: clients do not have one array of indices into the test set each, or all are empty.
        """
        rows, count = [own.astype(np.int32) for own in owned(rows, most=self.num_clients)], len(self.test.labels)
        if len(rows) != self.num_clients or not (every := np.concatenate(rows)).size:
            raise UserError(f"own tests: rows for {len(rows)} clients, expected {self.num_clients}, not all empty")
        if every.min() < 0 or every.max() >= count:
            raise UserError(f"own tests: row {every.max()} or {every.min()} is outside the {count} test examples")
        return self._replace(tests=_table(rows))

    def owned_rows(self) -> list[np.ndarray]:
        """Returns the rows of each client, without padding."""
        return rows_of(self.ownership)

    def class_counts(self) -> np.ndarray:
        """Returns the number of examples of each class at each client, [clients, classes].

        If every token has a label, tokens are counted; of labels 0 and 1, [examples, classes], ones are counted. The
        counts of a store are of all examples, also with ``examples_per_client``.
        """
        if self.store is not None and self.store.class_counts is not None:
            return self.store.class_counts.astype(int)
        labels, pad = np.asarray(self.train.labels), self.train.pad

        def count(own):
            if pad is None and own.ndim == 2:
                return own.sum(axis=0, dtype=int)
            return np.bincount(own.ravel() if pad is None else own[own != pad], minlength=self.num_classes)

        return np.stack([count(labels[rows]) for rows in self.owned_rows()])

    def partition_arrays(self) -> dict[str, np.ndarray]:
        """Returns the arrays that are saved for the partition.

        ``class_counts`` [clients, classes] and ``class_names`` [classes]; with domains also ``domain_counts`` [clients,
        domains] and ``domain_names`` [domains]. If every token has a label, the only class is ``targets``. Empty for a
        store of many clients, which has the counts, or without counts.
        """
        store = self.store
        if store is not None and (self.num_clients > _MOST_COUNTED or store.class_counts is None):
            return {}
        if self.train.pad is None:
            arrays = {"class_counts": self.class_counts(), "class_names": np.array(self.class_names, str)}
        else:
            if store is not None:
                store.verify()
            targets = np.sum(np.asarray(self.train.labels) != np.asarray(self.train.pad), axis=1)
            counts = np.array([[targets[rows].sum()] for rows in self.owned_rows()])
            arrays = {"class_counts": counts, "class_names": np.array(["targets"])}
        if self.domains is None:
            return arrays
        names, domain_of_example = self.domains.names, self.domains.train
        counts = [np.bincount(domain_of_example[rows], minlength=len(names)) for rows in self.owned_rows()]
        return arrays | {"domain_counts": np.stack(counts), "domain_names": np.array(names, str)}

    def own_tests(self) -> Ownership:
        """Returns the rows of the test set on which each client's personal model is evaluated.

        These are ``tests``, if given. Otherwise, with domains, they are all test examples of the client's domains.
        Without domains, they are as many test examples as possible in the class proportions of the client's training
        examples.
        """
        if self.tests is not None:
            return self.tests
        labels = np.asarray(self.test.labels)
        if self.domains is None and labels.ndim > 1:
            raise UserError("own tests: examples with several labels cannot be divided by class; give tests")
        if self.domains is None:
            of_class = [np.flatnonzero(labels == c) for c in range(self.num_classes)]
            parts = [rows_in_proportion(of_class, counts) for counts in self.class_counts()]
        else:
            present = [np.unique(self.domains.train[rows]) for rows in self.owned_rows()]
            parts = [np.flatnonzero(np.isin(self.domains.test, domains)) for domains in present]
        return _table(parts)

    def hashes(self) -> dict[str, str]:
        """Returns SHA-256 hashes of the data and of the partition, which identify the data of a run."""
        if self.store is not None:  # recorded when it was written
            rows = [self.store.facts["index"][name] for name in ("offsets.npy", "names.txt")]
            chosen = [self.num_clients, self.store.most or 0]
            return {"data": self.store.digest, "partition": digest([*rows, chosen])}
        data = (self.train.inputs, self.train.labels, self.test.inputs, self.test.labels)
        own = {} if self.tests is None else {"tests": digest([np.asarray(part) for part in self.tests])}
        if self.common_validation is not None:
            own["common_validation"] = digest_once((self.common_validation.inputs, self.common_validation.labels))
        return {"data": digest_once(data), "partition": digest(self.owned_rows()), **own}


def _table(parts):
    return as_table(parts, max(1, *map(len, parts)))


def _examples(name, inputs, labels, mean=None, std=None, storage="device", pad=None):
    inputs = arrays.as_numbers(f"{name} inputs", inputs)
    if not inputs.ndim or not labels.ndim:
        raise UserError(f"{name} data: inputs {inputs.shape} and labels {labels.shape}, expected one of each example")
    if len(inputs) != len(labels) or not len(labels):
        kind = "images" if inputs.ndim == 4 else "inputs"
        raise UserError(f"{name} data: {len(inputs)} {kind} but {len(labels)} labels")
    # np.array: on a CPU, memory of a device could otherwise be the caller's
    place = np.asarray if storage == "host" else (lambda array: jax.device_put(np.array(array)))
    pad = None if pad is None else place(padding(name, labels, pad))
    mean, std = normalization(mean, std, inputs.shape[-1:], name)
    if mean is None:
        return Examples(place(inputs), place(labels), None, None, pad=pad)
    arrays.check_normalized(f"{name} inputs", inputs, mean, std)
    return Examples(*map(place, (inputs, labels, mean, std)), pad=pad)


def padding(name: str, labels: np.ndarray, pad: int) -> np.ndarray:
    """Returns ``pad`` in the type of the labels, which are read up to the first target.

    Raises:
        UserError: labels are not integers [examples, length], or have no target.
    """
    if labels.ndim != 2 or labels.dtype.kind not in "iu":
        raise UserError(f"{name} labels: {labels.dtype} {labels.shape}, expected integers [examples, length] with pad")
    if not any((labels[first : first + _BLOCK] != pad).any() for first in range(0, len(labels), _BLOCK)):
        raise UserError(f"{name} labels: all are {pad}, which is padding; expected at least one target")
    return np.asarray(pad, labels.dtype)


def normalization(
    mean: float | tuple | None, std: float | tuple | None, channels: tuple[int, ...], name: str = "train"
) -> tuple[np.ndarray, np.ndarray] | tuple[None, None]:
    """Returns mean and std [channels] in float32; None for both if neither is given.

    Raises:
        UserError: they have another shape or are not finite, or a std is not above 0.
    """
    if mean is None and std is None:
        return None, None
    given = (("mean", 0 if mean is None else mean), ("std", 1 if std is None else std))
    with np.errstate(over="ignore"):
        mean, std = (arrays.as_array(f"data: {key}", value).astype(np.float32) for key, value in given)
    fits = {mean.shape, std.shape} <= {(), (1,), channels}
    if not fits or not np.all(np.isfinite(mean) & np.isfinite(std) & (std > 0)):
        expected = f"expected finite numbers, one or {channels[0]} of them, and std above 0"
        raise UserError(f"data: mean {mean.tolist()} and std {std.tolist()}; {expected}")
    return tuple(np.broadcast_to(x, channels) for x in (mean, std))
