"""Reads arrays from pickles without executing them: ``pickletools`` lists the instructions, and this module interprets
them.

A pickle is a program for a stack machine, which may call any function. Only instructions that make dicts, lists,
tuples, texts, numbers and NumPy arrays are interpreted; NumPy's constructors are known by name and never called.
Pickles of Python 2, such as CIFAR's, store bytes as Latin-1 text.
"""

import pickletools
import re
from typing import Any, BinaryIO

import numpy as np

_ARRAY = {("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")}
_BYTES = {("_codecs", "encode"), ("__builtin__", "bytes")}  # of a text or empty, as Python 3 writes them for Python 2
_NAMED = {("numpy", "ndarray"), ("numpy", "dtype"), *_BYTES, *_ARRAY}  # by a pickled array
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_VALUES = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE")
_VALUES += ("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BINSTRING", "SHORT_BINSTRING")
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_TIMES = 10  # how many values a pickle may have for each of its instructions, as it may name a value again and again
_SPARE = 1000


def read_pickled(stream: BinaryIO) -> Any:
    """Returns the object in a pickle.

    Raises:
        ValueError: for an object of another type, which the message names, and for values that are nested too deeply,
            or far more numerous than instructions. Damaged pickles raise other exceptions, too.
    """
    stack, memo, marks, count = [], {}, [], 0

    def since_mark():
        first = marks.pop()
        found = stack[first:]
        del stack[first:]
        return found

    for count, (instruction, argument, _) in enumerate(pickletools.genops(stream)):  # noqa: B007
        match instruction.name:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case "MARK":
                marks.append(len(stack))
            case "EMPTY_LIST" | "EMPTY_DICT" as kind:
                stack.append([] if kind == "EMPTY_LIST" else {})
            case name if name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            case name if name in _TUPLES:
                stack[-_TUPLES[name] :] = [tuple(stack[-_TUPLES[name] :])]
            case "TUPLE":
                stack.append(tuple(since_mark()))
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "APPEND" | "APPENDS" as name:
                items = since_mark() if name == "APPENDS" else [stack.pop()]
                stack[-1].extend(items)
            case "SETITEM" | "SETITEMS" as name:
                items = since_mark() if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
            case "GLOBAL":
                stack.append(_named(*argument.split(" ")))
            case "STACK_GLOBAL":
                name = stack.pop()
                stack.append(_named(stack.pop(), name))
            case "REDUCE":
                arguments = stack.pop()
                stack.append(_Made(stack.pop(), arguments))
            case "BUILD":
                state = stack.pop()
                stack[-1].state = state
            case name if name in _VALUES:
                stack.append(argument)
            case name:
                raise ValueError(f"it has the instruction {name}, and only arrays and dicts are loaded")
    try:
        return _resolved(stack.pop(), _TIMES * count + _SPARE)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


class _Made:
    """An array, a dtype or bytes, whose ``state`` later instructions set."""

    def __init__(self, constructor, arguments):
        self.constructor, self.arguments, self.state, self.made = constructor, arguments, None, None


def _named(module, name):
    if (module, name) not in _NAMED:
        raise ValueError(f"it holds {module}.{name}, and only arrays and dicts are loaded")
    return module, name


def _resolved(root, left):
    """Returns a value with its arrays built; it may have at most ``left`` values."""

    def resolve(value):
        nonlocal left
        left -= 1
        if left < 0:
            raise ValueError("it has the same values over and over")
        match value:
            case _Made():
                if value.made is None:  # else it is there again
                    value.made = make(value)
                return value.made
            case dict():
                return {resolve(key): resolve(item) for key, item in value.items()}
            case list() | tuple():
                return type(value)(map(resolve, value))
        return value

    def make(made):
        if made.constructor in _BYTES:
            return "".join(made.arguments[:1]).encode("latin-1")
        if made.constructor not in _ARRAY:
            return _dtype(made)
        _, shape, dtype, is_fortran, content = made.state
        if isinstance(content, list):
            objects = np.empty(len(content), object)
            for row, value in enumerate(content):  # an assignment of all would take lists apart
                objects[row] = resolve(value)
            return objects.reshape(shape)[()]  # of an array that holds an object, the object
        content = resolve(content)
        content = content.encode("latin-1") if isinstance(content, str) else content
        return np.frombuffer(content, _dtype(dtype)).reshape(shape, order="F" if is_fortran else "C")

    return resolve(root)


def _dtype(made):
    name = made.arguments[0]
    if not re.fullmatch(r"[a-zA-Z]\d{0,9}", name):
        raise ValueError(f"it has numbers of the type {name!r:.40}")
    kind = np.dtype(name)
    return kind.newbyteorder(made.state[1]) if made.state[1] in "<>" else kind
