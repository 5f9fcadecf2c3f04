"""A labelled data set in memory, and its construction from readers and arrays."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, ParamSpec

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.class_holders import rows_by_class
from fedjax_collapse.data.reading import text
from fedjax_collapse.data.reading.cache import Arrays, cached
from fedjax_collapse.data.reading.images import encoded
from fedjax_collapse.data.reading.listings import fingerprint
from fedjax_collapse.data.sources import normalisations
from fedjax_collapse.data.stream import Stream, collect
from fedjax_collapse.schema.names import without
from fedjax_collapse.schema.options import Interval, Seed, check_value, checked, hints

MAX_PIXELS = 4096  # in a row
OF_TOKENS = ("next_word", "next_character")  # the tasks with a label for each token
PAD = 0  # their label that is no target
Size = Annotated[int, Interval(0, MAX_PIXELS)]
Channels = Annotated[int, (0, 1, 3)]
Scale = Annotated[float, Interval(0, ends="(]")] | Annotated[str, ("max",)] | None
Share = Annotated[float, Interval(0, 1, "[)")]
_OF_TRAINING = ("images", "labels", "domains", "owners", "coarse_labels")
_Arguments = ParamSpec("_Arguments")


class Source(NamedTuple):
    """A labelled data set in memory, of images, of their features or of text, with a training and a test part."""

    images: np.ndarray  # [examples, height, width, channels] uint8, or float32; features are [examples, d] float32, ids
    # of tokens [examples, length] integers, which are not normalised
    labels: np.ndarray  # [examples] int; by ``task`` [examples, length], or [examples, classes] of 0 and 1
    test_images: np.ndarray
    test_labels: np.ndarray
    mean: float | tuple | None  # raw pixel units
    std: float | tuple | None
    class_names: tuple[str, ...]
    domains: np.ndarray | None = None  # [examples] int index into domain_names, for data with feature shift
    test_domains: np.ndarray | None = None
    domain_names: tuple[str, ...] = ()
    owners: np.ndarray | None = None  # [examples] int client, for data that are divided already
    test_owners: np.ndarray | None = None
    client_names: tuple[str, ...] = ()  # names of natural clients, by owner
    coarse_labels: np.ndarray | None = None  # [examples] int, the class above the class, for ``pachinko``
    test_coarse_labels: np.ndarray | None = None
    task: str = "classification"  # or next_word, next_character, multi_label, regression (``nn/task.py``)
    validation_images: np.ndarray | None = None  # drawn by ``with_validation``
    validation_labels: np.ndarray | None = None

    def __repr__(self) -> str:
        train, test, kind = len(self.labels), len(self.test_labels), list(np.shape(self.images)[1:])
        of_classes = f", {len(self.class_names)} classes" if self.class_names else ""
        return f"Source({train} training and {test} test examples {kind}{of_classes})"

    def pooled(self) -> "Source":
        """Returns a source with all examples in its training part, the test examples last, and an empty test part."""

        pooled = {}
        for name in _OF_TRAINING:
            train, test = getattr(self, name), getattr(self, f"test_{name}")
            pooled[name] = None if train is None or test is None else np.concatenate([train, test])
            pooled[f"test_{name}"] = None if test is None else test[:0]
        return self._replace(**pooled)

    def with_validation(self, fraction: float, seed: int = 0) -> "Source":
        """Returns a source whose validation part is drawn from the training part; the other examples stay in order.

        Args:
            fraction: the fraction of each class, rounded; of all examples, if they do not have one class each.
            seed: of the draw.

        Raises:
            UserError: an argument is invalid, a class would have no training example left, or no example is drawn.
        """
        check_value("with_validation: fraction", fraction, Annotated[float, Interval(0, 1, "()")])
        check_value("with_validation: seed", seed, Seed)
        labels, rng = np.asarray(self.labels), np.random.default_rng(seed)
        has_classes, is_drawn = bool(self.class_names) and labels.ndim == 1, np.zeros(len(labels), bool)
        for rows in rows_by_class(labels if has_classes else np.zeros(len(labels), int)):
            count = round(fraction * len(rows))
            if count == len(rows):
                of_class = f" of class {self.class_names[labels[rows[0]]]}" if has_classes else ""
                raise UserError(f"validation: a fraction {fraction:g} is all {count} examples{of_class}; lower it")
            is_drawn[rng.permutation(rows)[:count]] = True
        if not is_drawn.any():
            of_classes = f" in {len(self.class_names)} classes" * has_classes
            raise UserError(
                f"validation: a fraction {fraction:g} of {len(labels)} examples{of_classes} is no example; raise it"
            )
        of_training = {name: values for name in _OF_TRAINING if (values := getattr(self, name)) is not None}
        return self._replace(
            validation_images=self.images[is_drawn], validation_labels=labels[is_drawn],
            **{name: values[~is_drawn] for name, values in of_training.items()},
        )  # fmt: skip


def from_files(make: Callable[_Arguments, Stream | Arrays]) -> Callable[_Arguments, Source]:
    """Decorates a function that reads files to return a source, cached by its options and files.

    The function returns a stream, or the fields of ``Source``. Its arguments that are paths are annotated ``str |
    Path``; ``normalisation`` is applied after reading.

    Raises:
        UserError: as in ``checked``, ``collect`` and ``from_arrays``.
    """
    signature = inspect.signature(make)
    paths = [name for name, hint in hints(make).items() if hint == str | Path]

    @functools.wraps(make)
    def read(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> Source:
        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        places = [Path(bound.arguments[name]).absolute() for name in paths if bound.arguments[name]]
        return read_once(make.__name__, bound.arguments, places, lambda: make(*bound.args, **bound.kwargs))

    return checked(read)


def read_once(
    name: str, options: Mapping[str, Any], places: Sequence[Path], read: Callable[[], Stream | Arrays]
) -> Source:
    """Returns the source of ``read()``, from the cache if it is stored there.

    Args:
        name: of the source.
        options: all options of ``read``, and the name of the ``normalisation`` of images, if any.
        places: the files and folders that are read.
        read: returns a stream, or the fields of ``Source``.

    Raises:
        UserError: as in ``collect`` and ``from_arrays``.
    """
    import PIL

    normalisation = options.get("normalisation", "")
    if "normalisation" in options:
        normalisations.check_name(normalisation)
    key = dict(options=without(options, "normalisation"), places=places, files=list(map(fingerprint, places)))
    key |= dict(preprocessing=text.VERSION, decoding=encoded.VERSION, pillow=PIL.__version__)
    arrays = cached(name, key, lambda: collect(found) if isinstance(found := read(), Stream) else found)
    return from_arrays(arrays, normalisation if arrays["images"].ndim == 4 else "")


def from_arrays(arrays: Arrays, normalisation: str) -> Source:
    """Returns the source of arrays; ``normalisation`` names the normalisation of images in units of 0 to 255, if any.

    Raises:
        UserError: if each training image has a single colour, as after a wrong scaling; if there is no such
            normalisation.
    """
    images, facts = arrays["images"], dict(mean=None, std=None)
    for name in arrays.keys() & {"task", "mean", "std"}:
        value = arrays[name].tolist()
        facts[name] = tuple(value) if isinstance(value, list) else value
    if normalisation:
        if all((image == image[:1, :1]).all() for image in images):
            raise UserError(
                f"data: each of the {len(images)} training images is of one colour, {images.min():g} to "
                f"{images.max():g}; expected images, check how they were written"
            )
        facts["mean"], facts["std"] = normalisations.mean_and_std(normalisation, images.shape[-1])
    names = {name: tuple(map(str, arrays.get(name, ()))) for name in ("class_names", "domain_names", "client_names")}
    return Source(**arrays | names | facts)
