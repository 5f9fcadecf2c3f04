"""Measurements of updates, of adapters, and of every block's representation, beside matrices by hand."""

import jax
import numpy as np
import pytest
from conftest import one_line

from fedjax_collapse import FedAvg, LabelFlip, LocalTraining, Model, SignFlip, nn, simulate
from fedjax_collapse.analysis import neural_collapse
from fedjax_collapse.analysis.moments import class_moments
from fedjax_collapse.analysis.rank import stable_rank
from fedjax_collapse.analysis.spectrum import covariance_spectrum, effective_rank
from fedjax_collapse.analysis.updates import (
    aggregation,
    as_matrices,
    cosines,
    decompose,
    energy,
    energy_beyond,
    overlap,
    product_values,
    weighted_sum,
)
from fedjax_collapse.core.records import Batch
from fedjax_collapse.measurements import adapters, layers, probe, updates
from fedjax_collapse.measurements import by_layer as measurements_layers
from fedjax_collapse.nn.adapters import LoRA, merged
from fedjax_collapse.nn.inspection import next_kernels

TRAINING = LocalTraining(epochs=1, batch_size=8, learning_rate=0.05)
A = np.array([[1.0, 0, 2]]), np.array([[1.0, 0, 1], [0, 2, 1]]), np.array([[0.0, 1, -1], [1, 1, 0]])
B = (
    np.array([[1.0], [0], [-1], [2]]),
    np.array([[1.0, 0], [0, 1], [1, 1], [2, -1]]),
    np.array([[0.0, 1], [2, 0], [1, -1], [1, 1]]),
)
P = [b @ a for b, a in zip(B, A, strict=True)]  # low-rank updates [outputs, inputs]
SAME_RANK = [P[1], P[2]], (1 / 3, 2 / 3)
OF_FACTORS = (B[1] + 2 * B[2]) @ (A[1] + 2 * A[2]) / 9  # what the average of factors keeps


def values(matrix):
    return decompose(matrix, 0).values


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        (P[1], (1.9947475040, 1.7479124775, 0.5721110255, 1)),
        ((P[1] + 2 * P[2]) / 3, (2.6016088661, 1.4332384259, 0.6977206178, 0.9640355425)),
        (OF_FACTORS, (1.5842318279, 1.0435607626, 0.9582574696, 1)),
        ((P[0] + P[1] + 2 * P[2]) / 4, (2.3531937047, 1.6548352757, 0.6042897530, 0.9940919067)),
    ],
    ids=["one client", "mean", "mean of factors", "mean of other ranks"],
)
def test_ranks_and_energies(matrix, expected):
    for side in (matrix, matrix.T):
        found = values(side)
        numbers = effective_rank(found[found > 1e-7]), stable_rank(found), energy(found, 1), energy(found, 2)
        assert numbers == pytest.approx(expected, abs=2e-7)
        np.testing.assert_allclose(found, np.linalg.svd(side, compute_uv=False), atol=1e-7)


def test_what_the_server_keeps():
    mean = (P[1] + 2 * P[2]) / 3
    found = aggregation([SAME_RANK[0]], [mean], [OF_FACTORS], SAME_RANK[1])
    assert found.error == pytest.approx(0.5874504568) and found.cosine == pytest.approx(0.8094816268)
    of_all = (P[0] + P[1] + 2 * P[2]) / 4
    exact = aggregation([P, P], [of_all] * 2, [of_all] * 2, (0.25, 0.25, 0.5))  # twice the same layer
    assert exact == pytest.approx((0, 1, 0.3708791209))
    nothing = np.zeros_like(P[0])
    assert np.isnan(aggregation([[nothing]], [nothing], [nothing], (1.0,))).all()


def test_directions_of_two_clients():
    first, second, third = (decompose(p.T, 8) for p in P)  # [inputs, outputs]
    assert [of.values.shape for of in (first, second)] == [(3,), (3,)]
    assert (first.outputs.shape, second.outputs.shape, second.inputs.shape) == ((4, 1), (4, 2), (3, 2))
    np.testing.assert_allclose(cosines(second.outputs, third.outputs), [0.8363243535, 0.6835409588])
    np.testing.assert_allclose(cosines(second.inputs, third.inputs), [1, 0.5773502692])
    assert overlap(second.outputs, third.outputs) == pytest.approx(0.5833333333)
    assert overlap(first.outputs, second.outputs) == pytest.approx(0.7647058824)
    none = decompose(np.zeros((3, 4)), 8)
    assert np.isnan(overlap(none.outputs, second.outputs)) and len(cosines(none.outputs, second.outputs)) == 0
    assert np.isnan(energy(none.values, 1)) and np.isnan(decompose(np.full((3, 4), np.nan), 2).values).all()


def test_products_of_factors_are_not_formed():
    for first, second in ((A[1].T, B[1].T), (A[2], A[1].T)):  # of rank 2, and of more rank than the sides have
        expected = np.linalg.svd(first @ second, compute_uv=False)
        found = product_values(first, second)
        assert len(found) == min(*first.shape, second.shape[1])
        np.testing.assert_allclose(found, expected[: len(found)], atol=1e-14)
    mean = weighted_sum([(a.T, b.T) for a, b in zip(A, B, strict=True)], (0.25, 0.25, 0.5))
    found = product_values(*mean)
    np.testing.assert_allclose(found, (2.2580289615, 1.8135479535, 0.2232689616), atol=1e-9)
    assert energy_beyond(found, 2) == pytest.approx(1 - 0.9940919067, abs=2e-7) and np.isnan(
        energy_beyond(0 * found, 2)
    )
    assert np.isnan(product_values(np.full((3, 2), np.nan), np.ones((2, 4)))).all()


def test_a_convolution_is_the_matrix_of_its_patches():
    kernel = np.arange(24.0).reshape(2, 2, 3, 2)
    found = as_matrices({"kernel": kernel, "bias": np.zeros(2)})
    assert list(found) == ["kernel"]
    np.testing.assert_array_equal(found["kernel"][:, 1], kernel[..., 1].ravel())


@pytest.fixture(scope="module")
def measured(federation):
    """The view of the second round, on the host, with three of five clients, one of whose layers is frozen."""
    model, views = Model(nn.SmallCNN(4, channels=(3, 5)), federation.input_shape), []
    measurements = {"u": updates, "keep": lambda view: views.append((view.updates, view.server_update)) or 0}
    options = dict(rounds=2, key=jax.random.key(0), participation=0.6, watch="all", measurements=measurements)
    result = simulate(federation, model, FedAvg(TRAINING.replace(freeze="head")), **options)
    return views[-1], result


def test_the_updates_of_a_round(measured, federation):
    """The server's change is the clients' mean weighted by size, of all layers but the head."""
    (of_clients, of_server), result = measured
    row, arrays = result.metrics[-1], {name[2:]: of[-1] for name, of in result.measurements.items() if "u/" in name}
    sizes = np.asarray(federation.ownership.sizes)[list(of_clients)]
    paths = ["Conv_0/kernel", "Conv_1/kernel", "Dense_0/kernel"]
    assert arrays["local_singular_values"].shape == (3, 3, 5) and arrays["singular_values"].shape == (3, 5)
    ranks, of_local = [], np.zeros((3, 2))
    for layer, path in enumerate(paths):
        each = [update[path].reshape(-1, update[path].shape[-1]).astype(float) for update in of_clients.values()]
        mean = np.average(each, axis=0, weights=sizes)
        for name, matrix in (("singular_values", of_server[path].reshape(mean.shape)), ("mean_singular_values", mean)):
            expected = np.linalg.svd(matrix, compute_uv=False)
            np.testing.assert_allclose(arrays[name][layer, : len(expected)], expected, rtol=1e-4, atol=1e-7)
        if path != "Dense_0/kernel":
            ranks.append(effective_rank(np.linalg.svd(mean, compute_uv=False)))
            of_local[:, layer] = [effective_rank(np.linalg.svd(p, compute_uv=False)) for p in each]
    assert (arrays["singular_values"][2, :4] == 0).all() and np.isnan(arrays["energy"][2]).all()
    for name in ("effective_rank", "mean_effective_rank"):
        assert row[f"measured/u/{name}"] == pytest.approx(np.mean(ranks), rel=1e-4)
    assert row["measured/u/local_effective_rank_mean"] == pytest.approx(of_local.mean(), rel=1e-4)
    assert row["measured/u/error"] < 1e-4 and row["measured/u/cosine"] == pytest.approx(1)
    assert 1 / 3 < row["measured/u/agreement"] < 1
    assert 0 < row["measured/u/output_overlap"] <= 1 and np.isnan(arrays["output_cosines"][2]).all()
    assert (np.diff(arrays["output_cosines"][1, :5]) <= 0).all()


def test_honest_and_malicious_clients_apart(federation, network):
    """Two of five, of which the cohort may have one."""
    views, algorithm = [], FedAvg(TRAINING, {"label_flip": LabelFlip(0.4), "sign_flip": SignFlip(0.2)})
    measurements = {"u": updates, "keep": lambda view: views.append(view.updates) or 0}
    options = dict(rounds=1, key=jax.random.key(0), watch="all", measurements=measurements)
    row = simulate(federation, network, algorithm, **options).metrics[-1]
    for kind, ids in (("honest", (0, 1, 2)), ("malicious", (3, 4))):
        each = [map(values, as_matrices(views[-1][i]).values()) for i in ids]
        expected = np.mean([[effective_rank(of) for of in layers] for layers in each])
        assert row[f"measured/u/{kind}_effective_rank"] == pytest.approx(expected, rel=1e-6)
    assert row["measured/u/malicious_stable_rank"] != row["measured/u/honest_stable_rank"]


def test_a_client_outside_the_cohort_and_no_shared_weight(federation, network):
    options = dict(rounds=6, key=jax.random.key(0), watch=(1,), measurements={"u": updates})
    result = simulate(federation, network, FedAvg(TRAINING), participation=0.4, **options)
    absent = np.array([np.isnan(row["watched"]) for row in result.metrics])
    assert absent.any() and not absent.all()
    np.testing.assert_array_equal([np.isnan(row["measured/u/agreement"]) for row in result.metrics], absent)
    assert all(row["measured/u/effective_rank"] >= 1 for row in result.metrics)
    with one_line("measurement updates: clients share no weight matrix with the server"):
        simulate(federation, network, FedAvg(TRAINING, private="all"), **options)


def test_adapters_of_a_round(federation):
    """Averaged factors of rank 2, with the clients' products formed."""
    model, views = Model(nn.MLP(4, hidden=(6,)), federation.input_shape, adapters=LoRA(2, 4.0, layers=("all",))), []
    algorithm = FedAvg(TRAINING.replace(freeze="base", learning_rate=0.5))
    options = dict(rounds=2, key=jax.random.key(0), participation=0.6, watch="all")
    measurements = {"a": adapters, "keep": lambda view: views.append(view) or 0}
    result = simulate(federation, model, algorithm, measurements=measurements, **options)
    row, view = result.metrics[-1], views[-1]

    def product(of):
        layer = of.variables.params["Dense_0"]
        return 2.0 * np.asarray(layer["lora_a"], float).reshape(-1, 2) @ np.asarray(layer["lora_b"], float)

    sizes = np.asarray(federation.ownership.sizes)[list(view.local)]
    clients, kept = [product(of) for of in view.local.values()], product(view.server)
    mean = np.average(clients, axis=0, weights=sizes)
    of_mean, of_kept = (np.linalg.svd(of, compute_uv=False) for of in (mean, kept))
    np.testing.assert_allclose(result.measurements["a/mean_singular_values"][-1, 0], of_mean[:6], rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(result.measurements["a/singular_values"][-1, 0], of_kept[:2], rtol=1e-5)
    found = {name: row[f"measured/a/{name}"] for name in ("beyond_1", "mean_beyond_2", "norm", "mean_norm", "error")}
    expected = {
        "beyond_1": of_kept[1] ** 2 / np.sum(of_kept**2),
        "mean_beyond_2": np.sum(of_mean[2:] ** 2) / np.sum(of_mean**2),
        "norm": np.linalg.norm(kept),
        "mean_norm": np.linalg.norm(mean),
        "error": np.linalg.norm(mean - kept) / np.linalg.norm(mean),
    }
    assert found == pytest.approx(expected, rel=1e-4) and found["error"] > 0.01
    assert row["measured/a/effective_rank"] == pytest.approx(effective_rank(of_kept[:2]), rel=1e-4)
    local = np.mean([effective_rank(np.linalg.svd(of, compute_uv=False)[:2]) for of in clients])
    assert row["measured/a/local_effective_rank_mean"] == pytest.approx(local, rel=1e-4)


def test_adapters_of_a_network_without_any(federation, network):
    with one_line(r"measurement adapters: the network has no adapters; set network\.adapters"):
        simulate(federation, network, FedAvg(TRAINING), rounds=1, key=jax.random.key(0), measurements={"a": adapters})


def of_all(model, variables, examples, rows):
    """Levels and labels of the rows, in one batch."""
    inputs = (np.asarray(examples.inputs)[rows] - np.asarray(examples.mean)) / np.asarray(examples.std)
    labels = np.asarray(examples.labels)[rows]
    batch = Batch(inputs.astype(np.float32), labels, np.ones(len(rows), bool))
    apply = jax.jit(model.apply, static_argnames=("train", "levels"))
    outputs, _ = apply(variables, batch, train=False, levels=True)
    return [np.asarray(f) for f in (*outputs.levels, outputs.features)], labels


@pytest.fixture(scope="module")
def measured_layers(federation):
    """The view of the second round, with three of five clients, and what was measured_layers in batches of 7."""
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


def test_every_model_is_measured_on_the_test_set_and_at_its_clients(measured_layers, federation):
    model, (shared, local), arrays = measured_layers
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


def test_spectra_are_of_the_width_of_their_level(measured_layers, federation):
    model, (shared, _), arrays = measured_layers
    levels, _ = of_all(model, shared[""], federation.test, np.arange(30))
    for spectrum, level in zip(arrays["spectrum"], levels, strict=True):
        assert np.isnan(spectrum[level.shape[1] :]).all() and len(spectrum) == 9
        np.testing.assert_allclose(spectrum[: level.shape[1]], covariance_spectrum(level), rtol=1e-3, atol=1e-7)


def test_the_number_of_passes_is_that_of_the_examples(federation, network, monkeypatch):
    """Of two watched clients: four models on test set and probe, three on each client's own examples."""
    seen, batches = [], measurements_layers._Levels._batches

    def counted(self, examples, rows):
        return seen.append(len(rows)) or batches(self, examples, rows)

    monkeypatch.setattr(measurements_layers._Levels, "_batches", counted)
    options = dict(rounds=1, watch=(0, 2), measurements={"l": layers}, key=jax.random.key(0))
    simulate(federation, network, FedAvg(TRAINING), **options)
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
