"""A field that is added to a record of options is found everywhere, without another edit."""

import collections
import dataclasses

import pytest
from conftest import check
from flax import struct

from experiments.commands import manual
from experiments.study import parsing
from fedjax_collapse.config import base, keys
from fedjax_collapse.config.plain_values import plain
from fedjax_collapse.config.resolving import check_keys
from fedjax_collapse.schema.options import Count, hints

MEANING = "a number that only this test has"
PATHS = {
    keys.Engine: "engine.added",
    keys.Data: "data.added",
    keys.Schedule: "added",
    keys.LocalTraining: "training.added",
    keys.engine.Participation: "cohort.added",
}


def with_field(record):
    """A copy of the record with one more field."""
    doc = f"One more.\n\n    Args:\n        added: {MEANING}.\n    "
    if dataclasses.is_dataclass(record):
        body = {"__annotations__": {"added": Count}, "added": 7, "__doc__": doc}
        return struct.dataclass(type(record.__name__, (record,), body))
    defaults = (*record._field_defaults.values(), 7)
    made = collections.namedtuple(record.__name__, (*record._fields, "added"), defaults=defaults)
    made.__annotations__ = hints(record) | {"added": Count}
    made.__new__.__annotations__ = made.__annotations__
    made.__doc__ = doc
    return made


@pytest.fixture(params=PATHS, ids=lambda record: record.__name__)
def added(request, monkeypatch):
    """The path of the field that has been added to a copy of a record."""
    record, copy = request.param, with_field(request.param)
    given = {record: copy}
    for section, parts in keys._PARTS.items():
        monkeypatch.setitem(keys._PARTS, section, tuple((given.get(of, of), names) for of, names in parts))
    monkeypatch.setattr(keys, "_ADDED", {given.get(of, of): names for of, names in keys._ADDED.items()})
    monkeypatch.setattr(keys, "simulate", copy)  # which describes the fields of a schedule
    monkeypatch.setattr(keys, "Schedule", copy if record is keys.Schedule else keys.Schedule)
    keys.keys.cache_clear()
    yield PATHS[record]
    keys.keys.cache_clear()


def test_it_is_a_key_with_its_default_and_its_checks(added):
    config = base.get_config()
    *sections, name = added.split(".")
    values = plain(config)
    assert (values[sections[0]] if sections else values)[name] == 7
    check_keys(values)
    (values[sections[0]] if sections else values)[name] = 0
    check(rf"{added} 0 is too small, expected >= 1", check_keys, values)


def test_it_is_in_help_completion_and_the_page_of_keys(added):
    option = f"`{added}=7` (`int >= 1`): {MEANING}"
    assert option in manual.as_markdown()
    assert f"--config.{added}=7" in manual.on_screen("", {}) and MEANING in manual.on_screen("", {})
    options = [option for action in parsing.command_line("")._actions for option in action.option_strings]
    assert f"--config.{added}" in options
