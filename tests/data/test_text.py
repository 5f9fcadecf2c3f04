"""Preprocessing of texts, against values computed by hand."""

import json

import numpy as np
import pytest
from conftest import one_line

from fedjax_collapse import UserError
from fedjax_collapse.data.reading import text
from fedjax_collapse.data.reading.text import Vocabulary

ABC = Vocabulary(("a", "b", "c"))  # 1 to 3, OOV 4, BOS 5, EOS 6


def test_ids_are_those_of_tff():
    words = Vocabulary(tuple(f"w{i}" for i in range(10_000)))
    assert (words.oov, words.bos, words.eos, words.size) == (10_001, 10_002, 10_003, 10_004)
    assert words.ids(["w0", "w9999", "?"]) == [1, 10_000, 10_001]
    assert ABC.names == ("[PAD]", "a", "b", "c", "[OOV]", "[BOS]", "[EOS]")


@pytest.mark.parametrize(
    ("sentence", "ids"),
    [
        ("a b", [5, 1, 2, 6, 0]),
        ("a x c", [5, 1, 4, 3, 6]),
        ("a b c a", [5, 1, 2, 3, 1]),  # no EOS behind as many words as there is room for
        ("a b c a b c", [5, 1, 2, 3, 1]),
        ("a  b", [5, 1, 4, 2, 6]),  # an empty word between two spaces
        ("", [5, 4, 6, 0, 0]),
    ],
)
def test_next_words(sentence, ids):
    inputs, targets = text.word_sequences([sentence], ABC, length=4)
    assert inputs.tolist() == [ids[:-1]] and targets.tolist() == [ids[1:]]
    assert inputs.dtype == np.int16


def test_tags():
    encoding = text.tags(ABC, ("x", "y", "z"))
    assert (encoding.task, encoding.columns) == ("multi_label", ("tokens", "title", "tags"))
    inputs, labels = encoding.encode(["a b", "q", "c"], ["a q", "r", "z"], ["y", "z|x|w", "w"])
    np.testing.assert_allclose(inputs, [[2 / 3, 1 / 3, 0], [0, 0, 0], [0, 0, 1]], rtol=1e-6)
    assert labels.tolist() == [[0, 1, 0], [1, 0, 1], [0, 0, 0]] and inputs.dtype == np.float32


def test_characters_of_tff():
    """BOS, characters and EOS in pieces of 81: the first character of a later piece is never a target."""
    assert len(text.CHARACTERS) == 86
    encoding = text.next_characters()
    assert len(encoding.class_names) == 90 and encoding.class_names[1] == "d" and encoding.class_names[86] == "\r"
    inputs, targets = encoding.encode(["dh"])
    assert inputs[0].tolist() == [88, 1, 2, 89] + [0] * 76 and targets[0].tolist() == [1, 2, 89] + [0] * 77
    inputs, targets = encoding.encode(["d" * 79, "h" * 100, "\u00e9"])  # 81, 102 and 4 ids
    assert len(inputs) == 4
    assert inputs[0].tolist() == [88] + [1] * 79 and targets[0].tolist() == [1] * 79 + [89]
    assert inputs[1].tolist() == [88] + [2] * 79 and targets[1].tolist() == [2] * 80
    assert inputs[2].tolist() == [2] * 20 + [89] + [0] * 59 and targets[2].tolist() == [2] * 19 + [89] + [0] * 60
    assert np.count_nonzero(targets[1:3]) == 100  # of 101 to predict
    assert targets[3, :4].tolist() == [87, 87, 89, 0]  # two bytes


def test_letters_of_leaf():
    assert len(text.LETTERS) == 80
    assert text.letters(["\n !}", "zA0-"]).tolist() == [[0, 1, 2, 79], [78, 25, 11, 9]]
    for wrong, message in (
        (["a#"], "'#' is none of LEAF's 80"),
        (["\u00e9"], "is none of"),
        (["a", "ab"], "differ in"),
    ):
        with pytest.raises(ValueError, match=message):
            text.letters(wrong)


def test_tweets_and_comments():
    words = text.words_of("I can't, you? @me #x...")
    assert words == ["I", "can't", ",", "you", "?", "me", "x", ".", ".", "."]
    assert text.padded_words([["a", "z"], ["c"] * 5], ABC, 3).tolist() == [[1, 4, 0], [3, 3, 3]]
    comment = [["<BOS>", "a", "<UNK>"], ["b", "<EOS>", "<PAD>"]]
    assert text.reddit_ids(comment, ABC).tolist() == [[5, 1, 4], [2, 6, 0]]
    assert text.most_frequent(["b", "a", "c", "a", "b", "d"], 3) == ("a", "b", "c")


def test_vocabularies(tmp_path):
    file = tmp_path / "words"
    file.write_text("the 900\nto 800\n\u00e9 7\n")
    assert text.read_vocabulary(file, 2) == ("the", "to") and text.read_vocabulary(file, 0) == ("the", "to", "\u00e9")
    file.write_text(json.dumps({"c#": 5, "java": 9, "php": 5}))
    assert text.read_vocabulary(file, 3, "tags") == ("java", "c#", "php")
    file.write_text(json.dumps({"vocab": ["b", "a"], "emba": [[0.5], [0.25]]}))
    assert text.read_vocabulary(file, 0) == ("b", "a")
    for content, message in (
        ("the 9\nto 8\n", r"words: 2 words, expected 3; set data.vocabulary_size"),
        ("the 9\nthe 8\nto 7\n", "the word 'the' is in it twice"),
        (
            "the 9\nto be 7\n",
            r"cannot be read \(line 2 is 'to be 7'\); expected lines of a word and its count, or JSON",
        ),
        ("the nine\n", "line 1 is 'the nine'"),
        ("{", r"cannot be read \(.*\); expected lines"),
        ('{"a": "b"}', "its values are no counts"),
    ):
        file.write_text(content)
        with one_line(message):
            text.read_vocabulary(file, 3)
    with pytest.raises(UserError, match=r"none: cannot be read \(No such file"):
        text.read_vocabulary(tmp_path / "none", 3)
