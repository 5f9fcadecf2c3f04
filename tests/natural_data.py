"""Files of LEAF, TensorFlow Federated, pfl-research and FLAIR, written in their formats."""

import json
import sqlite3

import h5py
import numpy as np
from small_data import draw, save_parquet
from tensorflow_datasets.proto.tf_example_generated_pb2 import Example


def leaf(file, **users):
    """A file of LEAF; ``users`` have x and y."""
    file.parent.mkdir(parents=True, exist_ok=True)
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    sizes = [len(y) for _, y in users.values()]
    file.write_text(json.dumps({"users": list(users), "num_samples": sizes, "user_data": data}))
    return file


def example(**features):
    """The bytes of a tf.train.Example of floats, integers and texts."""
    made = Example()
    for name, values in features.items():
        values, feature = np.ravel(values), made.features.feature[name]
        if values.dtype.kind in "fiu":
            (feature.float_list if values.dtype.kind == "f" else feature.int64_list).value.extend(values.tolist())
        else:
            feature.bytes_list.value.extend(str(value).encode() for value in values)
    return made.SerializeToString()


def tff(file, **splits):
    """A file of TFF: for each split (client, example) pairs."""
    file.unlink(missing_ok=True)
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)")
        rows = [(split, *pair) for split, pairs in splits.items() for pair in pairs]
        database.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
    database.close()
    return file


def question(tokens, title="", tags=""):
    other = dict(type=["question"], creation_date=["2010-01-08"], score=[3])
    return example(tokens=[tokens], title=[title], tags=[tags], **other)


def tff_hdf5(file, **clients):
    """An older file of TFF: ``examples/<client>/<feature>``."""
    with h5py.File(file, "w") as written:
        for client, features in clients.items():
            for name, values in features.items():
                text = isinstance(values[0], str)
                written.create_dataset(
                    f"examples/{client}/{name}",
                    data=np.array(values, object) if text else values,
                    dtype=h5py.string_dtype() if text else None,
                )
    return file


LABELS = [["plant"], ["animal", "plant"], [], ["food", "structure"], ["animal"], ["plant", "rare"]]


def flair(folder, group=2):
    """Images and users; shards with row groups of ``group`` rows, where rows are in no order of users."""
    images, _ = draw(6, (8, 8, 3))
    users = ["u3", "u1", "u3", "u2", "u1", "u9"]
    for name, rows in (("train-00000-of-00002", [0, 1, 2]), ("train-00001-of-00002", [3, 4]), ("test-00000", [5])):
        columns = {"image_id": [f"i{i}" for i in rows], "user_id": [users[i] for i in rows]}
        columns["fine_grained_labels"] = [[f"fine {name}" for name in LABELS[i]] for i in rows]
        own, options = [LABELS[i] for i in rows], dict(names=(), label="labels", group=group)
        save_parquet(folder / f"{name}.parquet", images[rows], own, **options, **columns)
    return images, users


def pfl(file, **parts):
    """StackOverflow as pfl-research writes it."""
    with h5py.File(file, "w") as written:
        for name, value in dict(vocabulary_size=7, unk_symbol=4, pad_symbol=0, max_sequence_length=3).items():
            written[f"metadata/{name}"] = value
        for number, word in enumerate(["PAD", "how", "c/c", ".", "UNK", "BOS", "EOS"]):
            written[f'metadata/vocabulary/"{word}"'] = number
        for part, users in parts.items():
            written[f"metadata/num_tokens/{part}"] = json.dumps(dict.fromkeys(users, 3))
            for user, rows in users.items():
                ids = np.array(rows, np.int32)
                written[f"{part}/{user}/inputs"], written[f"{part}/{user}/targets"] = ids[:, :-1], ids[:, 1:]
    return file
