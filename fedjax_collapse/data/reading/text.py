"""Texts as arrays of integers: vocabularies, and the preprocessing of the published tasks, as pure functions.

Ids are as in TensorFlow Federated (TFF): 0 is padding, 1 to V are the words in the order of the vocabulary, V + 1
stands for every other word (OOV), V + 2 begins a text (BOS) and V + 3 ends it (EOS). Only LEAF's Shakespeare has other
ids.
"""

import collections
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading.listings import reading
from fedjax_collapse.data.reading.untrusted import is_unicode, parse_json

VERSION = 1  # of the preprocessing; increase it whenever the arrays of a text change
PAD = 0
CHARACTERS = "dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"  # TFF's
LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"  # LEAF's
REDDIT_MARKS = ("<PAD>", "<BOS>", "<EOS>")
_WORD = re.compile(r"[\w']+|[.,!?;]")

Pair = tuple[np.ndarray, np.ndarray]  # inputs and labels of examples


class Vocabulary:
    """Words and their ids, ``size`` with padding, OOV, BOS and EOS; ``names`` are the names of all ids."""

    def __init__(self, words: tuple[str, ...]):
        self.words, self.names = words, ("[PAD]", *words, "[OOV]", "[BOS]", "[EOS]")
        self.oov, self.bos, self.eos, self.size = (len(words) + place for place in range(1, 5))
        self._ids = {word: row for row, word in enumerate(words, 1)}

    def ids(self, words: Iterable[str]) -> list[int]:
        return [self._ids.get(word, self.oov) for word in words]


class Encoding(NamedTuple):
    """The preprocessing of one task: texts of a client to examples.

    ``encode`` is a function of the texts of each of the ``columns``.
    """

    task: str
    columns: tuple[str, ...]
    class_names: tuple[str, ...]
    encode: Callable[..., Pair]


def next_words(vocabulary: Vocabulary, length: int = 20) -> Encoding:
    """Returns StackOverflow's next-word prediction; see ``word_sequences``."""
    encode = functools.partial(word_sequences, vocabulary=vocabulary, length=length)
    return Encoding("next_word", ("tokens",), vocabulary.names, encode)


def tags(vocabulary: Vocabulary, names: tuple[str, ...]) -> Encoding:
    """Returns StackOverflow's tag prediction: words of sentence and title, and their tags, joined by ``|``."""

    def encode(tokens, title, tags):
        texts = [f"{sentence} {above}" for sentence, above in zip(tokens, title, strict=True)]
        return bag_of_words(texts, vocabulary), multi_hot([joined.split("|") for joined in tags], names)

    return Encoding("multi_label", ("tokens", "title", "tags"), names, encode)


def next_characters(length: int = 80) -> Encoding:
    """Returns Shakespeare's next-character prediction as in TFF; see ``character_sequences``."""
    encode = functools.partial(character_sequences, length=length)
    return Encoding("next_character", ("snippets",), Vocabulary(tuple(CHARACTERS)).names, encode)


def word_sequences(texts: Sequence[str], vocabulary: Vocabulary, length: int = 20) -> Pair:
    """Returns inputs and targets [texts, length], the targets one word ahead of the inputs.

    A text is split at single spaces; two spaces in a row have an empty word between them. BOS precedes its first
    ``length`` words. If it has fewer, EOS and padding follow.
    """
    rows = np.full((len(texts), length + 1), PAD, _smallest(vocabulary.size))
    for row, text in zip(rows, texts, strict=True):
        ids = vocabulary.ids(text.split(" ", length)[:length])
        ids = [vocabulary.bos, *ids] if len(ids) == length else [vocabulary.bos, *ids, vocabulary.eos]
        row[: len(ids)] = ids
    return rows[:, :-1], rows[:, 1:]


def character_sequences(texts: Sequence[str], length: int = 80) -> Pair:
    """Returns inputs and targets [sequences, length] over TFF's 86 characters (90 ids); texts are not joined.

    BOS, the characters (UTF-8 bytes) and EOS are padded to a multiple of ``length + 1`` and cut into pieces. The first
    character of a piece is never a target.
    """
    vocabulary = Vocabulary(tuple(CHARACTERS))
    table = np.full(256, vocabulary.oov, np.uint8)
    table[[ord(character) for character in CHARACTERS]] = np.arange(1, 1 + len(CHARACTERS))
    pieces = [np.zeros((0, length + 1), np.uint8)]
    for text in texts:
        ids = table[np.frombuffer(text.encode(errors="surrogateescape"), np.uint8)]
        ids = np.concatenate([[vocabulary.bos], ids, [vocabulary.eos]]).astype(np.uint8)
        pieces.append(np.pad(ids, (0, -len(ids) % (length + 1)), constant_values=PAD).reshape(-1, length + 1))
    rows = np.concatenate(pieces)
    return rows[:, :-1], rows[:, 1:]


def letters(texts: Sequence[str]) -> np.ndarray:
    """Returns LEAF's ids [texts, length], 0 to 79, of texts of one length.

    Raises:
        ValueError: if texts differ in length, or if a character is not one of LEAF's 80.
    """
    if len({len(text) for text in texts}) > 1:
        raise ValueError("texts differ in length, expected windows of one length")
    codes = np.array([[ord(character) for character in text] for text in texts]).reshape(len(texts), -1)
    table = np.full(128, len(LETTERS), np.uint8)
    table[[ord(letter) for letter in LETTERS]] = np.arange(len(LETTERS))
    ids = table[np.minimum(codes, 127)]
    if (unknown := ids == len(LETTERS)).any():
        raise ValueError(f"{chr(codes[unknown][0])!r} is none of LEAF's {len(LETTERS)} letters")
    return ids


def bag_of_words(texts: Sequence[str], vocabulary: Vocabulary) -> np.ndarray:
    """Returns the frequency of each word among the known words of a text, float32 [texts, words].

    A text without known words is 0. TFF before 2021 also counts unknown words in the denominator.
    """
    counts = np.zeros((len(texts), len(vocabulary.words) + 1), np.float32)
    for row, text in zip(counts, texts, strict=True):
        np.add.at(row, np.array(vocabulary.ids(text.split()), int) - 1, 1)
    counts = counts[:, :-1]
    return counts / np.maximum(counts.sum(1, keepdims=True), 1)


def multi_hot(labels: Sequence[Iterable[str]], names: Sequence[str]) -> np.ndarray:
    """Returns 1 for each name that an example has, uint8 [examples, names]; other names are left out."""
    column, hot = {name: row for row, name in enumerate(names)}, np.zeros((len(labels), len(names)), np.uint8)
    for row, own in zip(hot, labels, strict=True):
        row[[column[name] for name in own if name in column]] = 1
    return hot


def words_of(text: str) -> list[str]:
    """Returns words and the marks ``.,!?;``, as LEAF splits the tweets of Sentiment140."""
    return _WORD.findall(text)


def padded_words(texts: Sequence[Sequence[str]], vocabulary: Vocabulary, length: int = 25) -> np.ndarray:
    """Returns the ids of the first words of each text [texts, length], padded at the end.

    LEAF pads Sentiment140 with the id of unknown words; here padding is 0, as elsewhere.
    """
    rows = np.full((len(texts), length), PAD, _smallest(vocabulary.size))
    for row, words in zip(rows, texts, strict=True):
        row[: len(words)] = vocabulary.ids(words[:length])
    return rows


def reddit_ids(sequences: Sequence[Sequence[str]], vocabulary: Vocabulary) -> np.ndarray:
    """Returns the ids of LEAF's Reddit sequences [sequences, 10], which contain padding, BOS and EOS as words.

    The ids are TFF's. LEAF's are 0 for padding, 1 for unknown words, then words and marks.

    Raises:
        ValueError: if sequences differ in length.
    """
    if len({len(tokens) for tokens in sequences}) > 1:
        raise ValueError("sequences differ in length")
    marks = dict(zip(REDDIT_MARKS, (PAD, vocabulary.bos, vocabulary.eos), strict=True))
    rows = [
        [marks.get(token, number) for token, number in zip(tokens, vocabulary.ids(tokens), strict=True)]
        for tokens in sequences
    ]
    return np.array(rows, _smallest(vocabulary.size))


def most_frequent(words: Iterable[str], size: int) -> tuple[str, ...]:
    """Returns the most frequent words in this order; words of equal counts in alphabetical order."""
    counts = collections.Counter(words)
    return tuple(sorted(counts, key=lambda word: (-counts[word], word))[:size])


def read_vocabulary(path: str | Path, size: int, what: str = "vocabulary") -> tuple[str, ...]:
    """Reads the first ``size`` words of a file, most frequent first.

    A line has a word and its count, or only a word (``stackoverflow.word_count``). A JSON file maps words to counts
    (``stackoverflow.tag_count``), or has the words in the list ``vocab`` (LEAF's ``embs.json``).

    Args:
        size: 0 takes all.
        what: the config's key of the file, for messages; its number of words is the key ``<what>_size``.

    Raises:
        UserError: if the file cannot be read, is of another format, or has too few words.
    """
    with reading(path, "cannot be read", "expected lines of a word and its count, or JSON"):
        content = Path(path).read_text("utf-8")
        words = _of_json(content) if content.lstrip()[:1] == "{" else _of_lines(content)
        if (broken := next((word for word in words if not is_unicode(word)), None)) is not None:
            raise ValueError(f"the word {broken!r:.40} has half a character")
    if len(words) < max(size, 1):
        raise UserError(
            f"{path}: {len(words)} words, expected {size or 'some'}; set data.{what}_size, or fetch it again"
        )
    words = tuple(words[:size] if size else words)
    if len(set(words)) < len(words):
        twice = next(word for word, count in collections.Counter(words).items() if count > 1)
        raise UserError(f"{path}: the word {twice!r} is in it twice; expected each once, fetch or write it again")
    return words


def _of_json(content):
    found = parse_json(content)
    if isinstance(found.get("vocab"), list):
        if not all(isinstance(word, (str, int, float)) for word in found["vocab"]):
            raise ValueError("vocab may contain only words")
        return list(map(str, found["vocab"]))
    if not all(isinstance(count, (int, float)) for count in found.values()):
        raise ValueError("its values are not counts")
    return sorted(found, key=found.get, reverse=True)  # stable


def _of_lines(content):
    lines = [line.split() for line in content.split("\n") if line.strip()]
    for number, line in enumerate(lines, 1):
        if len(line) > 2 or (len(line) == 2 and not line[1].isdecimal()):
            raise ValueError(f"line {number} is {' '.join(line)!r:.40}")
    return [line[0] for line in lines]


def _smallest(size):
    """Returns the integer type of ids below ``size``."""
    return np.int16 if size < 2**15 else np.int32
