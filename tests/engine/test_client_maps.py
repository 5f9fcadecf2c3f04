"""How clients are dealt to devices, and which devices there have to be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import one_line

from fedjax_collapse.core import processes
from fedjax_collapse.engine.client_maps import Chunked, Sharded


@pytest.mark.parametrize(
    ("devices", "at_once", "expected"),
    [(2, 1, [0, 3, 4, 1, 2, 5]), (3, 1, [0, 5, 1, 4, 2, 3]), (2, 2, [0, 1, 6, 7, 2, 3, 4, 5]), (1, 2, [0, 1, 2, 3])],
)
def test_chunks_are_dealt_in_turn_and_back(devices, at_once, expected):
    """Given by size, the largest chunk of a row goes to the device that had the smallest one of the row before."""
    client_map, ids = Sharded(devices, Chunked(at_once)), 10 + np.arange(len(expected))
    for arrange in (client_map.arrange, jax.jit(client_map.arrange)):
        np.testing.assert_array_equal(arrange(jnp.asarray(ids)), ids[expected])


def test_several_processes_use_all_their_devices(monkeypatch):
    monkeypatch.setattr(processes, "is_multiprocess", lambda: True)
    with one_line(r"num_devices 2: expected 8, all that the 1 processes have"):
        Sharded(2, Chunked(1))
    assert len(Sharded(8, Chunked(1)).devices) == 8
