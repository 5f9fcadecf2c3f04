"""The measurement of every block's representation, beside features that are computed at once."""

import jax
import numpy as np
import pytest

from fedjax_collapse import FedAvg, LocalTraining, Model, nn, simulate
from fedjax_collapse.analysis import neural_collapse
from fedjax_collapse.analysis.moments import class_moments
from fedjax_collapse.analysis.spectrum import covariance_spectrum, effective_rank
from fedjax_collapse.analysis.updates import decompose
from fedjax_collapse.core.records import Batch
from fedjax_collapse.measurements import by_layer as measurements_layers
from fedjax_collapse.measurements import layers, probe
from fedjax_collapse.nn.adapters import LoRA, merged
from fedjax_collapse.nn.inspection import next_kernels

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


def share_within(features, labels):
    """From rows, without moments."""
    within = [features[labels == c] - features[labels == c].mean(axis=0) for c in np.unique(labels)]
    return sum(np.sum(rows**2) for rows in within) / np.sum((features - features.mean(axis=0)) ** 2)


def alignment_with(kernel, features, k):
    """From singular vectors of the features, and of a kernel [..., in, out] whose inputs are put first by a loop."""
    rows = np.stack([np.asarray(kernel, float)[..., i, :].ravel() for i in range(kernel.shape[-2])])
    first = np.linalg.svd((features - features.mean(axis=0)).astype(float))[2][:k]
    return np.linalg.norm(first @ np.linalg.svd(rows)[0][:, :k]) ** 2 / k


def expected(model, federation, variables, examples, rows):
    levels, labels = of_all(model, variables, examples, rows)
    owned = np.unique(np.concatenate(federation.owned_rows()))
    fitted, classes = of_all(model, variables, federation.train, owned)
    heads = [probe.fit_ridge(class_moments(f, classes, 4)) for f in fitted]
    return {
        "effective_rank": [effective_rank(covariance_spectrum(f)) for f in levels],
        "nc1": [neural_collapse.variability(class_moments(f, labels, 4)) for f in levels],
        "probe": [probe.accuracy(head, f, labels) for head, f in zip(heads, levels, strict=True)],
        "within_share": [share_within(f, labels) for f in levels],
        "alignment": [
            alignment_with(variables.params[layer]["kernel"], f, 3)
            for layer, f in zip(("Dense_1", "Dense_2", "Dense_2"), levels, strict=True)
        ],
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


def test_share_within_classes_and_alignment_by_hand():
    """Computed apart in float64, of entries sin and cos of the squares 1, 4, 9, ... of their numbers."""
    features, weight = np.sin(np.arange(1, 25) ** 2.0).reshape(6, 4), np.cos(np.arange(1, 13) ** 2.0).reshape(4, 3)
    moments = class_moments(features, np.array([0, 0, 1, 1, 2, 2]), 3)
    assert neural_collapse.within_share(moments) == pytest.approx(0.5405661879, abs=1e-10)
    assert neural_collapse.alignment(moments, decompose(weight, 2).inputs) == pytest.approx(0.4996255704, abs=1e-10)
    assert np.isnan(neural_collapse.within_share(class_moments(features, np.zeros(6, int), 3)))


def test_alignment_of_a_network_with_shortcuts(federation):
    """The stem with the first convolution of the block, which is called before the shortcut; the rest with the head."""
    network = nn.ResNet18(4, width_multiplier=1 / 8, blocks=(1,), strides=(2,))
    model = Model(network, federation.input_shape)
    variables = model.init(jax.random.key(1))
    found = measurements_layers._Levels(model, federation, variables).measure(federation.test)["alignment"]
    levels, _ = of_all(model, variables, federation.test, np.arange(30))
    params = variables.params
    kernels = [params["stage_0_block_0"]["Conv_0"]["kernel"], *2 * [params["Dense_0"]["kernel"]]]
    expected = [alignment_with(kernel, f, 3) for kernel, f in zip(kernels, levels, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def next_of(module, shape=(32, 32, 3), **options):
    return next_kernels(Model(module, shape, **options))


def test_next_kernels():
    """Also of blocks that are recomputed, of layers that read flattened images, and of logits without a kernel."""
    small = dict(width_multiplier=1 / 8, blocks=(1, 1), strides=(1, 2))
    blocks = [f"stage_{i}_block_0/Conv_0/kernel" for i in range(2)]
    for remat in (False, True):
        assert next_of(nn.ResNet18(4, remat=remat, **small)) == (*blocks, *2 * ["Dense_0/kernel"])
    assert next_of(nn.MOONCNN(4))[1:3] == ("Dense_0/kernel", "Dense_1/kernel")
    assert next_of(nn.ViT(4, depth=2)) == ("block_1/query/kernel", *2 * ["Dense_0/kernel"])
    tied = nn.PflTransformer(30, embedding=16, mlp_width=20, depth=2)
    assert next_of(tied, (7,), input_dtype="int32") == ("block_1/query/kernel", None, None)


def random_variables(model):
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda of: rng.normal(size=of.shape).astype(np.float32), model.variable_shapes())


def test_directions_that_the_next_layer_reads(federation):
    """Channels of a flattened image have its pixels as outputs; a depthwise kernel has none; adapters are added."""
    moon = Model(nn.MOONCNN(4, hidden=(20,)), (32, 32, 3))
    variables = random_variables(moon)
    read = list(measurements_layers._read_directions(moon, variables, 3))[1]
    kernel = np.asarray(variables.params["Dense_0"]["kernel"]).reshape(25, 16, 20)
    expected = np.linalg.svd(np.concatenate([*kernel], axis=1))[0][:, :3]
    np.testing.assert_allclose(read @ read.T, expected @ expected.T, atol=1e-5)

    apart = Model(nn.EfficientNetB0(4, stages=((1, 3, 1, 16, 1), (1, 3, 2, 24, 1)), width_multiplier=0.25), (32, 32, 3))
    read = measurements_layers._read_directions(apart, random_variables(apart), 3)
    assert [of.shape for of in read] == [(4, 0), (6, 3), (160, 3), (160, 3)]

    model = Model(nn.MLP(4, hidden=(9, 6)), federation.input_shape, adapters=LoRA(2, layers=("all",)))
    variables = random_variables(model)
    plain = Model(model.module, model.input_shape)
    pairs = [measurements_layers._read_directions(*of, 3) for of in ((model, variables), (plain, merged(variables)))]
    for first, second in zip(*pairs, strict=True):
        np.testing.assert_array_equal(first, second)
