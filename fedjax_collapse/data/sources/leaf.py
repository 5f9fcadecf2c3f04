"""LEAF's folders: ``train/*.json`` and ``test/*.json``, each with ``users``, ``num_samples`` and ``user_data``.

``user_data[user]`` has ``x`` and ``y``, lists of one entry per example. Their types determine the data set:

* rows of pixels from 0 to 1, or names of image files, and classes: FEMNIST, CelebA;
* other rows of numbers, which are features: LEAF's and FedProx's synthetic data, FedProx's normalised MNIST;
* texts of 80 characters, and the next one: Shakespeare;
* the columns of a tweet (id, date, query, user, text), and 0 or 1: Sentiment140;
* the sequences of a comment, each of ten tokens, and ``target_tokens``: Reddit.

Files are read one at a time, because they hold numbers as text.

Args:
    path: the file or folder.
    channels: 1 is grey, 3 is colour; 0 uses the number of channels of the first image.
    normalisation: mean and standard deviation of the network's input, by name; a default ``''`` is the papers' of the
        data set, or ``unit``.
"""

import functools
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading import text
from fedjax_collapse.data.reading.images.encoded import Decoding, Encoded, channels_of, decode_all
from fedjax_collapse.data.reading.images.folders import SUFFIXES
from fedjax_collapse.data.reading.listings import file_below, files_below, reading
from fedjax_collapse.data.reading.tables.tabular import as_square, to_levels
from fedjax_collapse.data.reading.untrusted import parse_json
from fedjax_collapse.data.source import Channels, Size, from_files
from fedjax_collapse.data.sources.normalisations import Normalisation
from fedjax_collapse.data.stream import ClientExamples, Stream, encoded
from fedjax_collapse.schema.options import Count, Natural

_TEXT = 4  # column of a tweet


@from_files
def leaf(
    path: str | Path,
    image_folder: str | Path = "",
    image_size: Size = 0,
    channels: Channels = 3,
    max_examples: Natural = 0,
    vocabulary: str | Path = "",
    vocabulary_size: Count = 10_000,
    length: Count = 25,
    normalisation: Normalisation = "unit",
) -> Stream:
    """A folder of LEAF, ``train/*.json`` and ``test/*.json``, whose users are natural clients.

    Images are FEMNIST or CelebA. Texts are Shakespeare (windows of 80 characters and the next one, 80 classes),
    Sentiment140 (two classes) or Reddit (ten tokens and the next ones), depending on the files.

    Args:
        image_folder: the folder with the images, if the files only name them (CelebA).
        image_size: height and width in pixels to resize to (bilinear); 0 keeps the size, which all images must share.
        max_examples: most examples of a client, the first ones; 0 takes all.
        vocabulary: the file of words, for Sentiment140 and Reddit; ``''`` counts the words of the training part.
        vocabulary_size: the number of words; for Reddit with padding and unknown words.
        length: words of a tweet.

    Raises:
        UserError: if a file is missing, damaged, or of other contents; the message names it.
    """
    root, names, task, are_images = Path(path), None, "classification", False
    _, _, x, y = next(_users(root / "train"))
    kind = _kind_of_text(x[0], y[0])
    if kind == "shakespeare":
        encode, names = _windows, tuple(text.LETTERS)
    elif kind == "sentiment140":
        words = _vocabulary(root, vocabulary, vocabulary_size, lambda x: text.words_of(x[_TEXT]))
        encode, names = functools.partial(_tweets, text.Vocabulary(words), length), ("negative", "positive")
    elif kind == "reddit":  # LEAF's size is that of padding, unknown words and all tokens that are counted
        words = _vocabulary(root, vocabulary, max(vocabulary_size - 2, 1), lambda x: itertools.chain.from_iterable(x))
        known = text.Vocabulary(tuple(word for word in words if word not in text.REDDIT_MARKS))
        encode, names, task = functools.partial(_comments, known), known.names, "next_word"
    elif all(isinstance(name, str) and Path(name).suffix.lower() in SUFFIXES for name in x):
        if not image_folder:
            raise UserError(f"{path}: x are names of images; set data.image_folder to the folder that has them")
        decoding = Decoding(image_size, channels or channels_of(_files(x[:1], image_folder)[0]))
        encode, are_images = functools.partial(_photographs, image_folder, decoding), True
    else:
        encode, are_images = _encoding_of(x)
    train, test = (functools.partial(_stream, root / part, encode, max_examples) for part in ("train", "test"))
    return Stream(str(path), train, test, None, names, task, normalisation if are_images else "")


def _stream(folder, encode, most, first: int = 0) -> Iterator[ClientExamples]:
    """Yields the users of a part in the order of files, from position ``first`` on, with at most ``most`` examples."""
    users = ((file, user, (x[: most or None], y[: most or None])) for file, user, x, y in _users(folder))
    return encoded(users, lambda pair: encode(*pair), first, "expected images, or the texts of LEAF's data sets")


def _kind_of_text(x, y):
    """Returns the name of the text data set of an example; empty for images and features."""
    if isinstance(x, str) and isinstance(y, str) and len(y) == 1:
        return "shakespeare"
    if isinstance(y, dict) and "target_tokens" in y:
        return "reddit"
    return "sentiment140" if isinstance(x, list) and len(x) == _TEXT + 1 and isinstance(x[_TEXT], str) else ""


def _windows(x, y):
    return text.letters(x), text.letters(y)[:, 0].astype(int)


def _tweets(vocabulary, length, x, y):
    labels = np.array([int(label) for label in y])
    if not np.isin(labels, (0, 1)).all():
        raise ValueError(f"y are {y[0]!r:.30}, ..., expected 0 or 1")
    return text.padded_words([text.words_of(tweet[_TEXT]) for tweet in x], vocabulary, length), labels


def _comments(vocabulary, x, y):
    """Returns the sequences of all comments; targets that do not count are padding."""
    targets = itertools.chain.from_iterable(comment["target_tokens"] for comment in y)
    parts = [*itertools.chain.from_iterable(x)], [*targets]
    pair = tuple(text.reddit_ids(part, vocabulary) for part in parts)
    if pair[0].shape != pair[1].shape:
        raise ValueError(f"sequences {pair[0].shape} with target_tokens {pair[1].shape}")
    return pair


def _photographs(folder, decoding, x, y):
    return decode_all(_files(x, folder), decoding), _classes(y)


def _vocabulary(path, file, size, words_of):
    """Returns the words of a file, else the most frequent words of the training part."""
    if file:
        return text.read_vocabulary(file, size)
    words = (word for _, _, x, _ in _users(path / "train") for example in x for word in words_of(example))
    return text.most_frequent(words, size)


def _users(folder):
    """Yields (file, user, x, y) of all users of a part that have examples, one file at a time."""
    files = [file for file in files_below(folder) if file.suffix == ".json"] if os.path.isdir(folder) else []
    seen: set[str] = set()
    for file in files:
        for user, x, y in _read(file):
            if user in seen:
                raise UserError(f"{file}: user {user} is also in another file; expected each in one, preprocess again")
            seen.add(user)
            yield file, user, x, y
    if not seen:
        raise UserError(f"{folder}: expected LEAF's *.json with at least one user's examples, next to the other part")


def _read(file):
    with reading(file, "cannot be read", "expected LEAF's users, num_samples and user_data, write it again"):
        content = parse_json(file.read_bytes())
        users, sizes, data = content["users"], content["num_samples"], content["user_data"]
        pairs = [(user, size, data[user]["x"], data[user]["y"]) for user, size in zip(users, sizes, strict=True)]
    for user, size, x, y in pairs:
        is_part = isinstance(y, list) and bool(y) and isinstance(y[0], dict)  # Reddit's sizes count all parts
        if not isinstance(x, list) or not isinstance(y, list) or not len(x) == len(y) == (len(x) if is_part else size):
            found = f"{len(x) if isinstance(x, list) else x!r:.30} x for {len(y) if isinstance(y, list) else y!r:.30} y"
            raise UserError(f"{file}: user {user} has {found}, expected {size} of each; write it again")
        if x:
            yield str(user), x, y


def _classes(y):
    labels = np.array(y)
    if labels.ndim != 1 or labels.dtype.kind not in "iub" or labels.min() < 0:
        raise ValueError(f"y are {y[0]!r:.30}, ..., expected classes from 0")
    return labels.astype(int)


def _rows(x):
    rows = np.array(x)  # a ValueError if rows differ in length
    if rows.ndim != 2 or rows.dtype.kind not in "fiu":
        raise ValueError(f"x are {x[0]!r:.30}, ..., expected rows of pixels or names of images")
    return rows


def _encoding_of(x):
    """Returns the function that converts rows of numbers like the first user's ``x``, and whether it returns images."""
    try:
        _images(x, [0])
    except ValueError:
        return _features, False
    return _images, True


def _images(x, y):
    labels = _classes(y)
    return as_square(to_levels(_rows(x))), labels


def _features(x, y):
    labels, rows = _classes(y), _rows(x).astype(np.float32)
    if not np.isfinite(rows).all():
        raise ValueError("x has NaN or infinity, expected finite numbers")
    return rows, labels


def _files(names, folder):
    return [Encoded(file, str(file), 0) for file in (file_below(Path(folder), name, "x") for name in names)]
