"""Files of LEAF and of TensorFlow Federated, written in their formats."""

import json
import sqlite3
import struct

import numpy as np


def leaf(file, **users):
    """A file of LEAF; ``users`` have x and y."""
    file.parent.mkdir(parents=True, exist_ok=True)
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    sizes = [len(y) for _, y in users.values()]
    file.write_text(json.dumps({"users": list(users), "num_samples": sizes, "user_data": data}))
    return file


def varint(value):
    octets = []
    while value > 127:
        octets.append(value & 127 | 128)
        value >>= 7
    return bytes([*octets, value])


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def example(is_packed=True, **features):
    """The bytes of a tf.train.Example of floats, integers and texts."""
    entries = b""
    for name, values in features.items():
        values = np.ravel(values)
        if values.dtype.kind == "f":
            each = [struct.pack("<f", value) for value in values]
            kind, content = 2, field(1, b"".join(each)) if is_packed else b"".join(b"\x0d" + value for value in each)
        elif values.dtype.kind in "iu":
            each = [varint(int(value) & (1 << 64) - 1) for value in values]
            kind, content = 3, field(1, b"".join(each)) if is_packed else b"".join(b"\x08" + value for value in each)
        else:
            kind, content = 1, b"".join(field(1, str(value).encode()) for value in values)
        entries += field(1, field(1, name.encode()) + field(2, field(kind, content)))
    return field(1, entries)


def tff(file, **splits):
    """A file of TFF: for each split (client, example) pairs."""
    file.unlink(missing_ok=True)
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)")
        rows = [(split, *pair) for split, pairs in splits.items() for pair in pairs]
        database.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
    database.close()
    return file
