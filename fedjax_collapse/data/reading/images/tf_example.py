"""TensorFlow's ``tf.train.Example``, read from its bytes without TensorFlow.

An Example is a map from names to lists of bytes, of floats or of integers. In protobuf's wire format a message is a
sequence of fields, each a key (number and type of the field) and a value: a variable-length integer (type 0), eight
bytes (1), a length and as many bytes (2), or four bytes (5).
"""

from collections.abc import Collection

import numpy as np

Feature = list[bytes] | np.ndarray
_BYTES, _FLOATS, _INTEGERS = 1, 2, 3  # numbers of the fields of a Feature


def read_example(content: bytes, wanted: Collection[str] = ()) -> dict[str, Feature]:
    """Returns the features by name: lists of bytes, float32 [n] or int64 [n].

    Args:
        wanted: the features that are read; empty for all.

    Raises:
        ValueError: if the bytes are no Example.
    """
    features = {}
    for _, message in _messages(content, 1):
        for _, entry in _messages(message, 1):
            name, value = b"", b""
            for number, part in _messages(entry, 1, 2):
                name, value = (part, value) if number == 1 else (name, part)
            if not wanted or name.decode() in wanted:
                features[name.decode()] = _feature(value)
    return features


def _feature(content):
    for kind, values in _messages(content, _BYTES, _FLOATS, _INTEGERS):
        found = [value for _, value in (_fields if kind == _INTEGERS else _messages)(values, 1)]
        if kind == _BYTES:
            return found
        if kind == _FLOATS:  # packed into one value, or a value each
            return np.frombuffer(b"".join(found), "<f4")
        return np.concatenate([np.zeros(0, np.int64), *(_unpack(value) for value in found)])
    return []


def _unpack(value):
    """Returns the variable-length integers of packed bytes, seven bits of each byte, the lowest first."""
    if not isinstance(value, bytes):  # not packed
        return np.array([value], np.uint64).astype(np.int64)
    octets = np.frombuffer(value, np.uint8)
    if not len(octets):
        return np.zeros(0, np.int64)
    ends = np.flatnonzero(octets < 0x80)
    if not len(ends) or ends[-1] != len(octets) - 1:
        raise ValueError("an integer is cut off")
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts + 1
    if lengths.max() > 10:
        raise ValueError("an integer is longer than 64 bits")
    shifts = 7 * (np.arange(len(octets)) - np.repeat(starts, lengths))
    bits = (octets & 0x7F).astype(np.uint64) << shifts.astype(np.uint64)
    return np.add.reduceat(bits, starts).astype(np.int64)


def _fields(content: bytes, *wanted: int) -> list[tuple[int, bytes | int]]:
    """Returns number and value of the wanted fields of a message."""
    found, place, end = [], 0, len(content)
    while place < end:
        key, place = (content[place], place + 1) if content[place] < 0x80 else _integer(content, place)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, place = _integer(content, place)
        else:
            size = {1: 8, 5: 4}.get(kind)
            if kind == 2:
                is_short = place < end and content[place] < 0x80
                size, place = (content[place], place + 1) if is_short else _integer(content, place)
            if size is None or place + size > end:
                raise ValueError("a field is cut off" if size is not None else f"a field has the unknown type {kind}")
            value, place = content[place : place + size], place + size
        if number in wanted:
            found.append((number, value))
    return found


def _messages(content: bytes, *wanted: int) -> list[tuple[int, bytes]]:
    """Returns the same for fields that are no integers."""
    found = _fields(content, *wanted)
    for number, value in found:
        if not isinstance(value, bytes):
            raise ValueError(f"field {number} is a number")
    return found


def _integer(content, place):
    value = shift = 0
    while True:
        if place >= len(content) or shift > 63:
            raise ValueError("an integer is cut off")
        octet = content[place]
        value |= (octet & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if octet < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, place
