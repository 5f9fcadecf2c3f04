"""Data of natural clients, written here as they are published: the same examples, classes and clients back."""

import json
import sys

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from conftest import cases, check
from natural_data import example, flair, leaf, pfl, question, tff, tff_hdf5
from small_data import assert_fields, draw

from fedjax_collapse import Federation, partition, sources
from fedjax_collapse.data.reading import text

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def words(tmp_path):
    file = tmp_path / "stackoverflow.word_count"
    file.write_text("how 90\nto 80\ni 70\n")
    return file


def test_words_of_stackoverflow(tmp_path, words):
    """Ids: padding 0, how 1, to 2, i 3, OOV 4, also between two spaces, BOS 5, EOS 6, unless there is no room."""
    sentences = ["to i", "how x i", "how", "how to i how", "how  to", ""]
    train = [("30" if row == 1 else "200", question(sentence)) for row, sentence in enumerate(sentences)]
    file = tff(tmp_path / "stackoverflow.sqlite", train=train, heldout=[("7", question("how to"))])
    options = dict(task="next_word", vocabulary=words, vocabulary_size=3, length=4, test_split="heldout")
    source = sources.tff(file, **options)
    ids = [[5, 2, 3, 6, 0], [5, 1, 6, 0, 0], [5, 1, 2, 3, 1], [5, 1, 4, 2, 6], [5, 4, 6, 0, 0], [5, 1, 4, 3, 6]]
    assert_fields(source, task="next_word", mean=None, std=None, images=np.array(ids)[:, :-1])
    assert_fields(source, labels=np.array(ids)[:, 1:], client_names=("200", "30", "7"), owners=[0] * 5 + [1])
    assert_fields(source, test_labels=[[1, 2, 6, 0]], test_owners=[2])
    assert source.images.dtype == np.int16
    assert_fields(source, class_names=("[PAD]", "how", "to", "i", "[OOV]", "[BOS]", "[EOS]"))
    assert_fields(sources.tff(file, max_examples=2, **options), owners=[0, 0, 1])
    words.write_text("to 90\nhow 80\ni 70\n")  # the cache knows
    assert sources.tff(file, **options).labels[0].tolist() == [1, 3, 6, 0]
    federation = Federation.from_source(source, partition.given(np.zeros(6, int), 2, source.owners))
    assert federation.train.inputs.shape == federation.train.labels.shape == (6, 4)
    assert federation.num_classes == 7 and federation.train.mean is None


def test_tags_of_stackoverflow(tmp_path, words):
    train = [("9", question("how to", "how now", "c#|java")), ("8", question("i", "i", "php|go"))]
    file, tags = tff(tmp_path / "so.sqlite", train=train, test=train[:1]), tmp_path / "stackoverflow.tag_count"
    tags.write_text(json.dumps({"php": 5, "java": 9, "go": 4}))
    options = dict(task="multi_label", vocabulary=words, vocabulary_size=3)
    source = sources.tff(file, tags=tags, tags_size=2, **options)
    assert_fields(source, task="multi_label", class_names=("java", "php"), labels=[[0, 1], [1, 0]], owners=[0, 1])
    np.testing.assert_allclose(source.images, [[0, 0, 1], [2 / 3, 1 / 3, 0]], rtol=1e-6)
    check("data.task multi_label: set data.tags to the file of tags", sources.tff, file, **options)
    check("data.task next_word: set data.vocabulary to the file of words", sources.tff, file, task="next_word")
    check("data.invert with task multi_label", sources.tff, file, tags=tags, invert=True, tags_size=2, **options)


def test_shakespeare_of_tff(tmp_path):
    """The same snippets in both formats of TFF: BOS 88, characters, OOV 87 for a byte, and EOS 89 in pieces of 81.

    So the first character of a later piece is never a target.
    """
    snippets = {"HAMLET_LORD": ["d" * 79, "h" * 100, "hl"], "GHOST": ["\u00e9"]}
    rows = [(role, example(snippets=[snippet])) for role, own in snippets.items() for snippet in own]
    source = sources.tff(tff(tmp_path / "a.sqlite", train=rows, test=rows[2:3]), task="next_character")
    ids = [[88, 87, 87, 89], [88] + [1] * 79 + [89], [88] + [2] * 80, [2] * 20 + [89], [88, 2, 3, 89]]
    ids = np.array([own + [0] * (81 - len(own)) for own in ids])
    assert_fields(source, images=ids[:, :-1], labels=ids[:, 1:], test_labels=ids[-1:, 1:], task="next_character")
    assert_fields(source, class_names=("[PAD]", *text.CHARACTERS, "[OOV]", "[BOS]", "[EOS]"))
    assert_fields(source, client_names=("GHOST", "HAMLET_LORD"), owners=[0, 1, 1, 1, 1])
    of = {role: {"snippets": own} for role, own in snippets.items()}
    files = tff_hdf5(tmp_path / "train.h5", **of), tff_hdf5(tmp_path / "test.h5", HAMLET_LORD={"snippets": ["hl"]})
    older = sources.tff(files[0], test_file=files[1], task="next_character")
    for one, other in zip(source, older, strict=True):
        np.testing.assert_array_equal(one, other)
    check("an HDF5 file has one part, an SQLite file both; set data.test_file", sources.tff, files[0])
    check("examples: user GHOST: it has snippets, expected pixels", sources.tff, files[0], test_file=files[1])
    check(r"train.h5: cannot be read as HDF5 \(.*\)", sources.tff, tmp_path / "no" / "train.h5", test_file=files[1])


def test_images_of_tff(tmp_path):
    images, labels = draw(5, (4, 4))
    pixels = (images / np.float32(255)).astype(np.float32)
    train = dict(f1={"pixels": pixels[:3], "label": labels[:3]}, f0={"pixels": pixels[3:4], "label": labels[3:4]})
    train = tff_hdf5(tmp_path / "train.h5", **train)
    test = tff_hdf5(tmp_path / "test.h5", f1={"pixels": pixels[4:], "label": [0]})
    source = sources.tff(train, test_file=test, invert=True)
    order = [3, 0, 1, 2]
    assert_fields(source, images=255 - images[order, ..., None], owners=[0, 1, 1, 1], labels=labels[order])
    test = tff_hdf5(tmp_path / "test.h5", f1={"pixels": pixels[4:], "label": [4]})
    check("train.h5: test label 4 is none of the 4 classes", sources.tff, train, test_file=test)
    small = {"pixels": pixels[:1, :2, :2], "label": [0]}
    test = tff_hdf5(tmp_path / "test.h5", f1={"pixels": pixels[4:], "label": [0]}, f2=small)
    message = r"test.h5: examples: user f2: inputs of \(2, 2, 1\), but the first ones are \(4, 4, 1\); fetch"
    check(message, sources.tff, train, test_file=test)
    images, _ = draw(2, (32, 32, 3))  # CIFAR-100 by Pachinko allocation
    pairs = [("3", example(image=image, label=i, coarse_label=7)) for i, image in enumerate(images)]
    source = sources.tff(tff(tmp_path / "cifar100.sqlite", train=pairs, test=pairs))
    assert_fields(source, images=images, client_names=("3",), labels=[0, 1])


def test_shakespeare_of_leaf(tmp_path):
    windows = ["\n !}zA0-" + " " * 72, "a" * 80, "b" * 80]
    leaf(tmp_path / "train" / "a.json", ROMEO=(windows[:2], ["B", " "]))
    leaf(tmp_path / "test" / "a.json", ROMEO=(windows[2:], ["}"]))
    source = sources.leaf(tmp_path)
    assert_fields(source, task="classification", class_names=tuple(text.LETTERS), labels=[26, 1], test_labels=[79])
    assert source.images[0].tolist() == [0, 1, 2, 79, 78, 25, 11, 9] + [1] * 72 and source.images.dtype == np.uint8
    for wrong, message in (("#" * 80, "'#' is none of LEAF's 80 letters; expected images, or the"), ("a", "differ")):
        leaf(tmp_path / "train" / "a.json", ROMEO=(["b" * 80, wrong], ["B", "B"]))
        check(f"a.json: user ROMEO: .*{message}", sources.leaf, tmp_path)


def tweet(text):
    return ["1467", "Mon Apr 06", "NO_QUERY", "ann", text]


def test_sentiment140_of_leaf(tmp_path):
    """Without a vocabulary the most frequent words of the training part, at equal counts by alphabet."""
    tweets = [tweet("so so good!"), tweet("bad day")]
    leaf(tmp_path / "train" / "b.json", ann=(tweets, [1, 0]), bob=([tweet("ok")], [1]))
    leaf(tmp_path / "test" / "b.json", ann=([tweet("so new")], ["0"]))
    source = sources.leaf(tmp_path, vocabulary_size=4, length=5)  # so ! bad day
    assert_fields(source, images=[[1, 1, 5, 2, 0], [3, 4, 0, 0, 0], [5, 0, 0, 0, 0]], labels=[1, 0, 1])
    assert_fields(source, test_images=[[1, 5, 0, 0, 0]], owners=[0, 0, 1], class_names=("negative", "positive"))
    (tmp_path / "embs.json").write_text(json.dumps({"vocab": ["new", "so"], "emba": [[0.0], [1.0]]}))
    source = sources.leaf(tmp_path, vocabulary=str(tmp_path / "embs.json"), vocabulary_size=2)
    assert_fields(source, test_images=[[2, 1] + [0] * 23])
    leaf(tmp_path / "test" / "b.json", ann=([tweet("so")], [4]))
    check("user ann: y are 4, ..., expected 0 or 1", sources.leaf, tmp_path)


def comment(*tokens):
    """A comment's sequences and their targets, three tokens each in place of LEAF's ten."""
    x, y = ["<BOS>", *tokens, "<EOS>"], [*tokens, "<EOS>", "<PAD>"]
    pads = ["<PAD>"] * (-len(x) % 3)
    x, y = ([(ids + pads)[i : i + 3] for i in range(0, len(ids + pads), 3)] for ids in (x, y))
    return x, {"target_tokens": y, "count_tokens": [[1] * 3] * len(x), "subreddit": "jax", "score": 1}


def test_reddit_of_leaf(tmp_path):
    """``num_samples`` is that of all parts. LEAF's six ids are those of four tokens, three of which are marks."""
    comments = [comment("no", "no"), comment("hi"), comment("no")]
    for part, rows in (("train", slice(0, 2)), ("test", slice(2, 3))):
        file = leaf(tmp_path / part / "r.json", u5=tuple(map(list, zip(*comments[rows], strict=True))), u6=([], []))
        content = json.loads(file.read_text())
        file.write_text(json.dumps(content | {"num_samples": [3, 0]}))
    source = sources.leaf(tmp_path, vocabulary_size=6)
    assert_fields(source, class_names=("[PAD]", "no", "[OOV]", "[BOS]", "[EOS]"), task="next_word", owners=[0] * 3)
    images, labels = [[3, 1, 1], [4, 0, 0], [3, 2, 4]], [[1, 1, 4], [0, 0, 0], [2, 4, 0]]
    assert_fields(source, images=images, labels=labels, test_labels=[[1, 4, 0]])


def test_tables_of_texts(tmp_path):
    """Sentiment140 as Parquet, with a class that is only tested; Shakespeare in one csv file without a test part."""
    for part, rows in (("train", [("a b", 4, "u2"), ("b", 0, "u1")]), ("test", [("c a", 0, "u1"), ("c", 2, "u9")])):
        texts, labels, users = zip(*rows, strict=True)
        table = pyarrow.table({"text": texts, "date": [""] * 2, "user": users, "sentiment": labels, "query": users})
        (tmp_path / "s140").mkdir(exist_ok=True)
        pyarrow.parquet.write_table(table, tmp_path / "s140" / f"{part}-00000-of-00001.parquet")
    options = dict(client_column="user", length=3)
    source = sources.texts(tmp_path / "s140", classes=("0", "4"), **options)
    assert_fields(source, images=[[2, 1, 0], [1, 0, 0]], labels=[1, 0], test_images=[[3, 2, 0]])  # b 1, a 2, OOV 3
    assert_fields(source, client_names=("u1", "u2"), owners=[1, 0], class_names=("0", "4"))
    assert len(sources.texts(tmp_path / "s140", **options).test_labels) == 1  # 2 is no class of training
    words = sources.texts(tmp_path / "s140", task="next_word", vocabulary_size=2, **options)
    assert_fields(words, labels=[[2, 1, 5], [1, 5, 0]], task="next_word")
    check("no column 'who' among text, date, user", sources.texts, tmp_path / "s140", client_column="who")
    check("row 0 has 4 in 'sentiment', expected a text; c", sources.texts, tmp_path / "s140", text_column="sentiment")
    check("a part has no text of the classes 7", sources.texts, tmp_path / "s140", classes=("7",))

    lines = [f'{role},"{window}",{after}' for role, window, after in
             [("ROMEO", "ab\n,", '"1"'), ("ROMEO", "    ", '" "'), ("NURSE", "NULL", "x")]]  # fmt: skip
    file = tmp_path / "shakespeare.csv"
    file.write_text("\n".join(["character_id,x,y", *lines]) + "\n")
    options = dict(task="next_character", client_column="character_id")
    source = sources.texts(file, test_fraction=0.5, **options).pooled()
    assert source.client_names == ("NURSE", "ROMEO") and sorted(source.labels.tolist()) == [1, 12, 76]
    assert sorted(source.images.tolist()) == [[1] * 4, [38, 45, 36, 36], [53, 54, 0, 8]]
    file.write_text("character_id,x,y\nROMEO,#,a\nROMEO,b,c\n")
    check("shakespeare.csv: it has no test part, and test_fraction 0.2", sources.texts, file, **options)
    check("'#' is none of LEAF's 80 letters; expected windows", sources.texts, file, test_fraction=0.5, **options)
    file.write_text("character_id,x,y\nROMEO,b\n")
    check(r"shakespeare.csv: cannot be read as CSV \(.*\)", sources.texts, file, **options)


def test_several_labels_of_flair(tmp_path):
    images, _ = flair(tmp_path / "flair")
    options = dict(client_column="user_id", task="multi_label")
    source = sources.parquet(tmp_path / "flair", **options)
    labels = [[0, 0, 1, 0], [1, 0, 1, 0], [0] * 4, [0, 1, 0, 1], [1, 0, 0, 0]]
    assert_fields(source, class_names=("animal", "food", "plant", "structure"), task="multi_label", images=images[:5])
    assert_fields(source, labels=labels, test_labels=[[0, 0, 1, 0]], client_names=("u1", "u2", "u3", "u9"))
    fine = sources.parquet(tmp_path / "flair", label_column="fine_grained_labels", **options)
    assert_fields(fine, class_names=[f"fine {name}" for name in source.class_names], labels=labels)
    chosen = sources.parquet(tmp_path / "flair", classes=("plant", "animal"), **options)
    assert_fields(chosen, labels=[[1, 0], [1, 1], [0, 0], [0, 0], [0, 1]])
    check("row 0 has a list in 'labels', expected one class; set data.label_column, or", sources.parquet,
          tmp_path / "flair", client_column="user_id")  # fmt: skip
    check("row 0 has no list in 'image_id', expected one of names", sources.parquet, tmp_path / "flair",
          label_column="image_id", **options)  # fmt: skip


def test_stackoverflow_of_pfl(tmp_path, monkeypatch):
    rows = [[5, 1, 6, 0], [5, 2, 3, 6]]
    file = pfl(tmp_path / "so.hdf5", train={"81": rows, "7": rows[:1]}, val={"9": rows[1:]})
    source = sources.pfl(file)
    assert_fields(source, class_names=("PAD", "how", "c/c", ".", "UNK", "BOS", "EOS"), task="next_word")
    assert_fields(source, images=[[5, 1, 6], [5, 1, 6], [5, 2, 3]], labels=[[1, 6, 0], [1, 6, 0], [2, 3, 6]])
    assert_fields(source, client_names=("7", "81", "9"), owners=[0, 1, 1])
    assert source.images.dtype == np.int16
    assert len(sources.pfl(file, max_examples=1).labels) == 2
    check("so.hdf5: no 'test' with clients among train, val; correct the name", sources.pfl, file, test_part="test")
    check("ids below 7", sources.pfl, pfl(file, train={"1": [[5, 7, 1, 0]]}, val={"1": rows}))
    with h5py.File(file, "w") as written:
        written["train/1/inputs"] = [[1]]
    check("so.hdf5: no metadata of .*; expected metadata/vocabulary_size or metadata/label_map", sources.pfl, file)
    monkeypatch.setitem(sys.modules, "h5py", None)
    check(r'HDF5 is read with the package h5py: pip install "fedjax_collapse\[hdf5\]"', sources.pfl, file)


def test_flair_of_pfl(tmp_path):
    images, _ = draw(3, (6, 6, 3))
    with h5py.File(tmp_path / "flair.hdf5", "w") as written:
        for part, rows in (("train", slice(0, 2)), ("val", slice(2, 3))):
            user = f"{part}/u1"
            written[f"{user}/images"] = images[rows]
            written[f"{user}/labels_row"], written[f"{user}/labels_col"] = np.uint16([0, 0]), np.uint8([2, 0])
        written["metadata/label_mapping"] = json.dumps({"plant": 2, "animal": 0, "food": 1})
    source = sources.pfl(tmp_path / "flair.hdf5")
    assert_fields(source, images=images[:2], class_names=("animal", "food", "plant"), task="multi_label")
    assert_fields(source, labels=[[1, 0, 1], [0, 0, 0]], std=255.0)
    check("no metadata of pfl's", sources.pfl, tmp_path / "flair.hdf5", fine_grained=True)


def test_words_of_a_tweet():
    assert text.words_of("I can't, you? @me #x...") == ["I", "can't", ",", "you", "?", "me", "x", ".", ".", "."]


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
        ("the 9\nto be 7\n", r"cannot be read \(line 2 is 'to be 7'\); expected lines of a word and its count, or"),
        ("the nine\n", "line 1 is 'the nine'"),
        ("{", r"cannot be read \(.*\); expected lines"),
        ('{"a": "b"}', "its values are not counts"),
        ('{"vocab": [["a"]]}', "vocab may contain only words"),
    ):
        file.write_text(content)
        check(message, text.read_vocabulary, file, 3)
    check(r"none: cannot be read \(No such file", text.read_vocabulary, tmp_path / "none", 3)


def test_femnist_of_leaf(tmp_path):
    """Pixels of 0 to 1 in several files; a user of the test part alone is the last client."""
    images, labels = draw(14, (4, 4))
    rows, labels = (images.reshape(14, 16) / 255).tolist(), labels.tolist()
    leaf(tmp_path / "train" / "b.json", w2=(rows[:3], labels[:3]))
    leaf(tmp_path / "train" / "a.json", w3=(rows[3:8], labels[3:8]), w1=(rows[8:9], labels[8:9]), w0=([], []))
    leaf(tmp_path / "test" / "a.json", w1=(rows[9:11], labels[9:11]), w0=(rows[11:], labels[11:]))
    source = sources.leaf(tmp_path, normalisation="half")
    order = [*range(3, 9), *range(3)]
    assert_fields(source, images=images[order][..., None], labels=[labels[row] for row in order], std=127.5, mean=127.5)
    assert_fields(source, client_names=("w1", "w2", "w3", "w0"), test_owners=[0, 0, 3, 3, 3], class_names=tuple("0123"))
    assert_fields(source, owners=[2] * 5 + [0] + [1] * 3)
    assert source.images.dtype == np.uint8
    leaf(tmp_path / "train" / "b.json", w2=([[0.0001] * 16] * 3, labels[:3]))  # not of 8 bits
    images = sources.leaf(tmp_path).images
    assert images.dtype == np.float32 and images[-1, 0, 0, 0] == np.float32(0.0255)


@cases((60, 0.0), (784, -0.42), (60, -3.0))
def test_rows_of_numbers_are_features(width, low, tmp_path):
    """LEAF's synthetic data, and FedProx's MNIST, whose rows could be images but are not of 0 to 1."""
    rng = np.random.default_rng(0)
    rows = np.round(rng.uniform(low, 1, (6, width)), 3)
    rows[0, 0] = low
    for part, own in (("train", rows), ("test", rows[::-1])):
        leaf(tmp_path / part / "a.json", b=(own[:4].tolist(), [0, 1, 2, 0]), a=(own[4:].tolist(), [1, 2]))
    source = sources.leaf(tmp_path)
    assert source.images.dtype == np.float32
    assert_fields(source, images=np.float32(rows), test_images=np.float32(rows[::-1]), mean=None)
    assert_fields(source, client_names=("a", "b"), labels=[0, 1, 2, 0, 1, 2], owners=[1, 1, 1, 1, 0, 0])
    federation = Federation.from_source(source, partition.given(source.labels, 2, source.owners))
    assert federation.input_shape == (width,) and federation.num_classes == 3


def test_wrong_files_of_leaf(tmp_path):
    file, row = tmp_path / "train" / "a.json", [0.5] * 16
    check(r"train: expected LEAF's \*.json with at least one user's examples", sources.leaf, tmp_path)
    leaf(tmp_path / "test" / "a.json", w=([row] * 3, [0, 1, 2]))
    for x, y, message in (
        ([[0.5] * 15] * 3, [0, 1, 2], r"training inputs are \(15,\), test inputs \(16,\)"),
        ([row, row, [0.5]], [0, 1, 2], "a.json: user w: .*expected images, or the texts of LEAF"),
        ([[2.0] * 15 + [np.nan]] * 3, [0, 1, 2], "user w: x has NaN or infinity, expected finite numbers"),
        ([row] * 3, [0, 1, -1], "y are 0, ..., expected classes from 0"),
        ([row] * 3, [0, 1, 9], "training labels are 0 to 9 for 3 examples"),
        ([row] * 3, [0, 1, 1], "test label 2 is none of the 2 classes of training"),
        ([["To be"]] * 3, list("tha"), "y are 't', ..., expected classes from 0; expected images, or the texts of"),
        (["To be, or not"] * 3, [0, 1, 2], "x are 'To be, or not', ..., expected rows of pixels or names of images"),
        ([row] * 2, [0, 1, 2], "user w has 2 x for 3 y, expected 3 of each; write it again"),
    ):
        leaf(file, w=(x, y))
        check(message, sources.leaf, tmp_path)
    leaf(file, w=([row] * 3, [0, 1, 2]), v=([[0.5] * 25], [0]))
    message = r"a.json: user v: inputs of \(5, 5, 1\), but the first ones are \(4, 4, 1\); expected images"
    check(message, sources.leaf, tmp_path)
    leaf(file.with_name("b.json"), w=([row], [0]))
    leaf(file, w=([row] * 3, [0, 1, 2]))
    check("b.json: user w is also in another file; expected each in one", sources.leaf, tmp_path)
    file.with_name("b.json").unlink()
    leaf(file, w=([row] * 3, [0, 1, 2]), v=([[2.0] * 16], [0]))
    check("user v: pixels are 2 to 2, expected 0 to 1", sources.leaf, tmp_path)
    content = leaf(file, w=([row] * 3, [0, 1, 2])).read_text()
    for damaged, message in (
        ("", r"Expecting value.*"),
        (content[:-30], r"Expecting.*"),
        ("[]", r"list indices must be .*"),
        (content.replace("num_samples", "numbers"), "no 'num_samples'"),
        (content.replace('"w": ', '"v": '), "no 'w'"),
    ):
        file.write_text(damaged)
        check(rf"a.json: cannot be read \({message}\); expected LEAF's users, num_samples", sources.leaf, tmp_path)


def test_emnist_of_tff(tmp_path):
    images, labels = draw(8, (4, 4))
    writers = ["f9", "f10", "f9", "f9", "f10", "f9", "f8", "f9"]
    pairs = [
        (writer, example(label=label, pixels=image / np.float32(255)))
        for writer, image, label in zip(writers, images, labels, strict=True)
    ]
    file = tff(tmp_path / "emnist_all.sqlite", all_test=pairs[5:], all_train=pairs[:5])
    options = dict(train_split="all_train", test_split="all_test")
    source = sources.tff(file, **options)
    images = images[..., None]
    assert_fields(source, images=images[:5], labels=labels[:5], client_names=("f10", "f9", "f8"))
    assert_fields(source, owners=[1, 0, 1, 1, 0], test_owners=[1, 2, 1])
    assert_fields(sources.tff(file, invert=True, **options), test_images=255 - images[5:])
    assert_fields(sources.tff(file, max_examples=2, **options), images=images[[0, 1, 2, 4]])
    assert source.images.dtype == np.uint8


def test_wrong_files_of_tff(tmp_path):
    good, file = example(pixels=[0.5] * 4, label=0), tmp_path / "data.sqlite"
    check(r"data.sqlite: cannot be read \(unable to open database file\); expected a SQLite", sources.tff, file)
    for content in (b"no database " * 99, tff(file, train=[("a", good)] * 99).read_bytes()[:5000]):
        file.write_bytes(content)
        check(r"data.sqlite: cannot be read \(.*\); expected a SQLite file of TFF's, unpacked", sources.tff, file)
    tff(file, all_train=[("a", good)], all_test=[("a", good)])
    check("no split 'train' among all_train, all_test; set data.train_split", sources.tff, file)
    for wrong, message in (
        (good[:-3], "train: user a: row 2: it is no tf.train.Example; fetch the file again"),
        (example(tokens="a b"), "row 2: it has tokens, expected pixels"),
        (example(pixels=[0.5] * 4), "row 2: it has pixels, expected label"),
        (example(pixels=[0.5] * 4, label=[1, 2]), r"label is \[\[1, 2\]\], expected one class from 0"),
        (example(pixels=[0.5] * 5, label=0), "rows of 5 numbers, expected square images"),
        (example(pixels=[0.5] * 9, label=0), r"inputs of \(3, 3, 1\), but the first ones are \(2, 2, 1\)"),
        (example(pixels=[1.5] * 4, label=0), "pixels are 1.5 to 1.5, expected 0 to 1"),
        (example(image=[256] * 4, label=0), "image is 256 to 256, expected 0 to 255"),
        (7, "train: user a: row 2: it is int, expected bytes"),
    ):
        tff(file, train=[("a", good), ("a", wrong)], test=[("a", good)])
        check(message, sources.tff, file)
    tff(file, train=[("a", good)], test=[("a", example(pixels=[0.5] * 4, label=5))])
    check("test label 5 is none of the 1 classes of training", sources.tff, file)
