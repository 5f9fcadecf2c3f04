"""The measurement of every block's representation, beside features that are computed at once."""

import jax
import numpy as np
import pytest

from fedjax_collapse import FedAvg, LocalTraining, Model, nn, simulate
from fedjax_collapse.analysis import neural_collapse
from fedjax_collapse.analysis.moments import class_moments
from fedjax_collapse.analysis.spectrum import covariance_spectrum, effective_rank
from fedjax_collapse.core.records import Batch
from fedjax_collapse.measurements import by_layer as measurements_layers
from fedjax_collapse.measurements import layers, probe

TRAINING = LocalTraining(epochs=1, batch_size=8, learning_rate=0.05)


def of_all(model, variables, examples, rows):
    """Levels and labels of the rows, in one batch."""
    inputs = (np.asarray(examples.inputs)[rows] - np.asarray(examples.mean)) / np.asarray(examples.std)
    labels = np.asarray(examples.labels)[rows]
    batch = Batch(inputs.astype(np.float32), labels, np.ones(len(rows), bool))
    outputs, _ = model.apply(variables, batch, train=False, levels=True)
    return [np.asarray(f) for f in (*outputs.levels, outputs.features)], labels


@pytest.fixture(scope="module")
def measured(federation):
    """The view of the second round, with three of five clients, and what was measured in batches of 7."""
    model, views = Model(nn.MLP(4, hidden=(9, 6)), federation.input_shape), []

    def both(view):
        found = layers(view)
        views.append(jax.device_get({"": view.server.variables, "received_": view.received}))
        views.append({client: jax.device_get(of.variables) for client, of in view.local.items()})
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measurements_layers, "_BATCH", 7)
        options = dict(rounds=2, key=jax.random.key(0), participation=0.6, watch="all", measurements={"l": both})
        arrays = simulate(federation, model, FedAvg(TRAINING), **options).measurements
    return model, views[-2:], {name[2:]: values[-1] for name, values in arrays.items() if name.startswith("l/")}


def expected(model, federation, variables, examples, rows):
    levels, labels = of_all(model, variables, examples, rows)
    owned = np.unique(np.concatenate(federation.owned_rows()))
    fitted, classes = of_all(model, variables, federation.train, owned)
    heads = [probe.fit_ridge(class_moments(f, classes, 4)) for f in fitted]
    return {
        "effective_rank": [effective_rank(covariance_spectrum(f)) for f in levels],
        "nc1": [neural_collapse.variability(class_moments(f, labels, 4)) for f in levels],
        "probe": [probe.accuracy(head, f, labels) for head, f in zip(heads, levels, strict=True)],
    }


def test_every_model_is_measured_on_the_test_set_and_at_its_clients(measured, federation):
    model, (shared, local), arrays = measured
    tests, owned = np.arange(len(federation.test.labels)), federation.owned_rows()
    assert arrays["effective_rank"].shape == (3,) and len(local) == 3
    for prefix, variables in shared.items():
        for name, values in expected(model, federation, variables, federation.test, tests).items():
            np.testing.assert_allclose(arrays[prefix + name], values, rtol=1e-4, err_msg=prefix + name)
    for i, (client, variables) in enumerate(local.items()):
        for name, values in expected(model, federation, variables, federation.test, tests).items():
            np.testing.assert_allclose(arrays[f"local_{name}"][i], values, rtol=1e-4)
        for prefix, of in {**shared, "local_": variables}.items():
            for name, values in expected(model, federation, of, federation.train, owned[client]).items():
                np.testing.assert_allclose(arrays[f"own_{prefix}{name}"][i], values, rtol=1e-3, err_msg=prefix + name)
    apart = arrays["local_effective_rank"].mean(axis=0) - arrays["effective_rank"]
    assert np.abs(apart).max() > 0.01 and np.abs(arrays["received_nc1"] - arrays["nc1"]).max() > 0.01


def test_spectra_are_of_the_width_of_their_level(measured, federation):
    model, (shared, _), arrays = measured
    levels, _ = of_all(model, shared[""], federation.test, np.arange(30))
    for spectrum, level in zip(arrays["spectrum"], levels, strict=True):
        assert np.isnan(spectrum[level.shape[1] :]).all() and len(spectrum) == 9
        np.testing.assert_allclose(spectrum[: level.shape[1]], covariance_spectrum(level), rtol=1e-3, atol=1e-7)


def test_the_number_of_passes_is_that_of_the_examples(federation, monkeypatch):
    """Of two watched clients: four models on test set and probe, three on each client's own examples."""
    model, seen = Model(nn.MLP(4, hidden=(6,)), federation.input_shape), []
    batches = measurements_layers._Levels._batches

    def counted(self, examples, rows):
        seen.append(len(rows))
        return batches(self, examples, rows)

    monkeypatch.setattr(measurements_layers._Levels, "_batches", counted)
    simulate(federation, model, FedAvg(TRAINING), rounds=1, watch=(0, 2), measurements={"l": layers},
             key=jax.random.key(0))  # fmt: skip
    assert sum(seen) == 4 * (30 + 110) + 3 * (23 + 40) == measurements_layers.passes(federation, 2)
