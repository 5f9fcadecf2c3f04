"""A labelled data set in memory, which ``sources.py`` reads, and how it is made of listings and arrays."""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.class_holders import rows_by_class
from fedjax_collapse.data.reading.cache import Arrays, cached
from fedjax_collapse.data.reading.images import encoded
from fedjax_collapse.data.sources import normalisations
from fedjax_collapse.schema.options import Interval, Seed, check_value

MAX_PIXELS = 4096  # in a row
OF_TOKENS = ("next_word", "next_character")  # the tasks with a label for each token
PAD = 0  # their label that is no target
Size = Annotated[int, Interval(0, MAX_PIXELS)]
Channels = Annotated[int, (0, 1, 3)]
Scale = Annotated[float, Interval(0, ends="(]")] | Annotated[str, ("max",)] | None
Share = Annotated[float, Interval(0, 1, "[)")]
_OF_TRAINING = ("images", "labels", "domains", "owners", "coarse_labels")


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
    client_names: tuple[str, ...] = ()  # those of natural clients, by owner
    coarse_labels: np.ndarray | None = None  # [examples] int, the class above the class, for ``pachinko``
    test_coarse_labels: np.ndarray | None = None
    task: str = "classification"  # or next_word, next_character, multi_label, regression (``nn/task.py``)
    validation_images: np.ndarray | None = None  # those that ``with_validation`` has drawn
    validation_labels: np.ndarray | None = None

    def __repr__(self) -> str:
        train, test, kind = len(self.labels), len(self.test_labels), list(np.shape(self.images)[1:])
        of_classes = f", {len(self.class_names)} classes" if self.class_names else ""
        return f"Source({train} training and {test} test examples {kind}{of_classes})"

    def pooled(self) -> "Source":
        """Returns a source with all examples in its training part, the test examples last, and an empty test part."""

        def pool(train, test):
            return None if train is None or test is None else np.concatenate([train, test])

        def none(test):
            return None if test is None else test[:0]

        return self._replace(
            images=pool(self.images, self.test_images), test_images=none(self.test_images),
            labels=pool(self.labels, self.test_labels), test_labels=none(self.test_labels),
            domains=pool(self.domains, self.test_domains), test_domains=none(self.test_domains),
            owners=pool(self.owners, self.test_owners), test_owners=none(self.test_owners),
            coarse_labels=pool(self.coarse_labels, self.test_coarse_labels),
            test_coarse_labels=none(self.test_coarse_labels),
        )  # fmt: skip

    def with_validation(self, fraction: float, seed: int = 0) -> "Source":
        """Returns a source whose validation part is drawn from the training part, which keeps the others in order.

        Args:
            fraction: of each class, rounded to the nearest number; of all, if examples do not have one class each.
            seed: of the draw.

        Raises:
            UserError: an argument is invalid, a class would have no training example left, or none is drawn.
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
                f"validation: a fraction {fraction:g} is none of {len(labels)} examples{of_classes}; raise it"
            )
        of_training = {name: values for name in _OF_TRAINING if (values := getattr(self, name)) is not None}
        return self._replace(
            validation_images=self.images[is_drawn], validation_labels=labels[is_drawn],
            **{name: values[~is_drawn] for name, values in of_training.items()},
        )  # fmt: skip


def from_listing(
    name: str,
    key: dict[str, Any],
    find: Callable[[], encoded.Listing],
    classes: tuple[str, ...],
    decoding: encoded.Decoding,
    normalisation: str,
) -> Source:
    """Returns the source of the images that ``find`` lists, decoded once for what ``key`` says of them.

    Raises:
        UserError: as in ``encoded.decode_listing`` and ``from_arrays``.
    """
    import PIL

    normalisations.check_name(normalisation)
    key |= dict(classes=classes, decoding=(encoded.VERSION, decoding), pillow=PIL.__version__)
    arrays = cached(name, key, lambda: encoded.decode_listing(find(), classes, decoding))
    return from_arrays(arrays, normalisation)


def from_arrays(arrays: Arrays, normalisation: str) -> Source:
    """Returns the source of images in units of 0 to 255.

    Raises:
        UserError: as in ``check_colours``; if there is no such normalisation.
    """
    check_colours(arrays["images"])
    mean, std = normalisations.mean_and_std(normalisation, arrays["images"].shape[-1])
    return Source(**arrays | names_of(arrays), mean=mean, std=std)


def check_colours(images: np.ndarray) -> None:
    """Raises UserError if each image is of one colour, as images are whose range was taken wrongly."""
    if all((image == image[:1, :1]).all() for image in images):
        raise UserError(
            f"data: each of the {len(images)} training images is of one colour, {images.min():g} to {images.max():g}; "
            "expected images, check how they were written"
        )


def names_of(arrays: Arrays) -> dict[str, tuple[str, ...]]:
    """Returns the fields of ``Source`` that are names."""
    return {name: tuple(map(str, arrays.get(name, ()))) for name in ("class_names", "domain_names", "client_names")}
