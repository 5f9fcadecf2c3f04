"""Examples that clients hold out for validation: as if they had only the others, but that the method can read them."""

import jax
import jax.numpy as jnp
import numpy as np
from conftest import assert_same_bits, one_line

from fedjax_collapse import FedAvg, FedDyn, FedLC, LocalTraining, Method, Model, nn, simulate

TRAINING = LocalTraining(epochs=2, batch_size=8, learning_rate=0.05)
BESIDE = {"feddyn": FedDyn(0.1), "fedlc": FedLC()}  # which use a client's relative size and its class counts


class Holds(Method):
    """A tenth, rounded down. A client remembers its held-out labels, and how many there are."""

    validation = 0.1

    def init_memory(self, variables, shapes):
        return jnp.zeros((), int), jnp.zeros((), int)

    def finish(self, view):
        def add(total, batch):
            return total + jnp.sum(jnp.where(batch.mask, 1 + batch.labels, 0))

        held_out = view.client.held_out
        return (view.over_batches(add, jnp.zeros((), int), view.client.size, held_out), held_out), ()


def run(federation, methods, training=TRAINING, **options):
    model = Model(nn.MLP(4, hidden=(6,)), federation.input_shape)
    return simulate(federation, model, FedAvg(training, methods), rounds=2, key=jax.random.key(3), **options)


def test_what_is_held_out_counts_nowhere_else(federation):
    """The bits, and the metrics of training, are those of clients that have only the other examples."""
    rows, sizes = federation.ownership
    held_out = sizes // 10
    expected = run(federation._replace(ownership=federation.ownership._replace(sizes=sizes - held_out)), BESIDE)
    owned = np.asarray(federation.train.labels)[np.asarray(rows)]
    labels = [own[size - count : size] for own, size, count in zip(owned, sizes, held_out, strict=True)]
    for storage in ("device", "host"):
        found = run(federation, {**BESIDE, "holds": Holds()}, storage=storage)
        read, counts = found.state.clients.memory.pop("holds")
        assert read.tolist() == [np.sum(1 + own) for own in labels] and counts.tolist() == held_out.tolist()
        assert_same_bits(found.state.clients, expected.state.clients)
        assert_same_bits(found.variables, expected.variables)
        assert found.metrics == expected.metrics
        assert [row["samples"] for row in found.timing] == [row["samples"] for row in expected.timing]


def test_batches_are_of_the_examples_that_are_left(federation):
    """Clients of 23, 7, 40, 21 and 19 examples, of which the largest trains on 36."""
    with one_line("batch_size 38 is more than the 36 examples of the largest"):
        run(federation, {"holds": Holds()}, TRAINING.replace(batch_size=38, drop_last=True))
