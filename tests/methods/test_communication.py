"""What clients and server exchange in a round: by hand for each method, and FedMR's table 3 to the last digit."""

from fnmatch import fnmatchcase

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from composed_algorithms import network_of
from conftest import assert_close, assert_same_bits, one_line

from experiments.commands import show_communication as command
from fedjax_collapse import FedAvg, LocalTraining, Model, engine, nn
from fedjax_collapse.config import build
from fedjax_collapse.config.keys import METHODS
from fedjax_collapse.core import masks
from fedjax_collapse.core.records import Client, ClientState, Examples
from fedjax_collapse.nn.adapters import LoRA
from fedjax_collapse.training import local, server
from fedjax_collapse.training.communication import communication

TRAINING = LocalTraining(epochs=1, batch_size=8, learning_rate=0.05)


def images(shape):
    """Shapes of examples."""
    channels = jax.ShapeDtypeStruct(shape[-1:], jnp.float32)
    shaped = jax.ShapeDtypeStruct((5, *shape), jnp.uint8), jax.ShapeDtypeStruct((5,), jnp.int32)
    return Examples(*shaped, channels, channels)


def count(model, part="all", other="none"):
    """Params and running statistics in one part of the network and not in the other."""
    variables = jax.eval_shape(model.init, jax.random.key(0))
    chosen = jax.tree.map(lambda inside, out: inside and not out, model.mask(part), model.mask(other))
    sizes = masks.select(chosen, jax.tree.map(lambda leaf: leaf.size, variables))
    params = sum(size for path, size in sizes.items() if path.startswith("params"))
    return params, sum(sizes.values()) - params


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "options", "shape", "classes", "dim", "state"),
    [
        ("resnet18", dict(kernel_init="kaiming_fan_out"), (28, 28, 1), 10, 512, 11_182_430),
        ("resnet18", dict(kernel_init="kaiming_fan_out"), (32, 32, 3), 10, 512, 11_183_582),
        ("wide_resnet", {}, (32, 32, 3), 100, 640, 36_564_957),
        ("efficientnet_b0", {}, (64, 64, 3), 8, 640, 4_874_581),
    ],
)
def test_table_3_of_fedmr(network, options, shape, classes, dim, state):
    """State dicts one way, with prototypes C d more; 36,628,957 and 4,879,701 are printed as 36.629M and 4.880M."""
    model = Model(build.network(network, options, classes), shape)
    found = communication(FedAvg(TRAINING, {"fedmr": METHODS["fedmr"]()}), model, images(shape))
    for way in ("down", "up"):
        assert found.of_model(way) + found.counters == state
        assert found.of_methods(way) - classes == classes * dim  # the C are which there are, or of how many examples
    assert found.kept == 0


@pytest.fixture(scope="module")
def network(federation):
    return Model(nn.SmallCNN(4, channels=(6,)), federation.input_shape)


def of(federation, network, training=TRAINING, private="none", **methods):
    return communication(FedAvg(training, methods, private=private), network, federation.train)


def test_every_method_by_hand(federation, network):
    """P params and S statistics of the model; C classes, d features."""
    (p, s), (c, d) = count(network), (4, 6)
    model = {"params": p, "batch_stats": s}
    more = {  # what methods add: down, up, kept
        "feddecorr": ({}, {}, 0),
        "scaffold": (p, p, p),
        "feddyn": ({}, {}, p),
        "feddc": (p, p, 2 * p),
        "fedcm": (p, {}, 0),
        "fednova": ({}, 1, 0),
        "fedexp": ({}, 1, 0),
        "moon": ({}, {}, p + s + 1),
        "fedproc": (c * d, c * d + c, 0),  # its clients do not look at which prototypes there are
        "fedmr": (c * d + c, c * d + c, 0),
        "noisy_update": ({}, {}, 0),
        "clip_update": ({}, {}, 0),
        "per_fedavg": ({}, {}, 0),
        "apfl": ({}, {}, p + s + 1),
        "pfedme": ({}, {}, p + s),
    }
    for name, (down, up, kept) in more.items():
        found = of(federation, network, **{name: METHODS[name]()})
        assert found.down == model | ({name: down} if down else {}), name
        assert found.up == model | ({name: up} if up else {}), name
        assert found.kept == kept and found.counters == 1, name


def test_a_clip_that_follows_a_quantile(federation):
    """The server sends it, and the client a bit."""
    network = Model(nn.MLP(4, hidden=(6,)), federation.input_shape)
    params = {"params": count(network)[0]}
    found = of(federation, network, dp_fedavg=METHODS["dp_fedavg"]())
    assert found.up == found.down == params and found.kept == 0
    found = of(federation, network, dp_fedavg=METHODS["dp_fedavg"](quantile=0.5))
    assert found.up == found.down == params | {"dp_fedavg": 1}


def test_what_never_changes_is_not_sent(federation, network):
    fixed = METHODS["fedmr"](prototypes="one_hot")
    assert of(federation, network, fedmr=fixed).of_methods("down") == 0
    params, statistics = count(network, other="head")
    frozen = of(federation, network, TRAINING.replace(freeze="head"))
    assert frozen.up == frozen.down == {"params": params, "batch_stats": statistics} and frozen.kept == 0
    assert of(federation, network, fedbabu=METHODS["fedbabu"]()) == frozen


def test_private_parts_stay(federation, network):
    for private in ("head", "batch_norm"):
        params, statistics = count(network, other=private)
        found = of(federation, network, private=private)
        shared = {"params": params} | ({"batch_stats": statistics} if statistics else {})
        assert found.up == found.down == shared
        assert found.kept == sum(count(network, private)) and found.counters == (statistics > 0)


def test_methods_with_own_models(federation, network):
    """FedProto sends prototypes only; FedALA keeps two arrays for each of the head and whether it mixed before."""
    (p, s), (c, d), (head, _) = count(network), (4, 6), count(network, "head")
    found = of(federation, network, fedproto=METHODS["fedproto"]())
    assert found.up == found.down == {"fedproto": c * d + c} and found.kept == p + s
    found = of(federation, network, fedala=METHODS["fedala"]())
    assert found.up == found.down == {"params": p, "batch_stats": s} and found.kept == 2 * head + 1


@pytest.mark.parametrize(("name", "own"), [("fedrod", "head/personal"), ("feddbe", "head/shift")])
def test_own_parts_of_a_method_s_head_stay(federation, name, own):
    algorithm = FedAvg(TRAINING, {name: METHODS[name]()})
    network = network_of(algorithm)
    (params, _), (kept, _) = count(network, other=own), count(network, own)
    found = communication(algorithm, network, federation.train)
    assert found.up == found.down == {"params": params} and found.kept == kept > 0


def test_methods_with_a_dispatch(federation, network):
    """FedAMP sends params and receives mixtures; what the server alone uses is not kept by clients. FedPAC sends heads
    and the features' variance and means besides prototypes, and receives heads. FedFomo sends the model and what others
    gain, and receives models and whose they are."""
    (p, s), (c, d), (head, _) = count(network), (4, 6), count(network, "head")
    found = of(federation, network, fedamp=METHODS["fedamp"]())
    assert (found.up, found.down) == ({"params": p}, {"fedamp": p}) and found.kept == 2 * p + s
    found = of(federation, network, fedpac=METHODS["fedpac"]())
    assert found.up == {"params": p, "batch_stats": s, "fedpac": c * d + c + c * d + 1}
    assert found.down == {"params": p, "batch_stats": s, "fedpac": c * d + c} and found.kept == head + c * d + 1
    found = of(federation, network, fedfomo=METHODS["fedfomo"](models=3))
    assert (found.up, found.down) == ({"params": p, "batch_stats": s, "fedfomo": 3}, {"fedfomo": 3 * (p + s) + 3})
    assert found.kept == 4 * (p + s) + 2 * 3


@pytest.mark.parametrize("training", [TRAINING, TRAINING.replace(momentum=0.5, momentum_reset=False)])
def test_adapters_are_sent_as_factors(federation, training):
    """And the head; of products the factors; FedEx-LoRA's residual, which is added to kernels, is sent to clients."""
    model = Model(nn.MLP(4, hidden=(16,)), federation.input_shape, adapters=LoRA(2, 2.0, layers=("all",)))
    sizes = {part: count(model, part)[0] for part in ("lora_a", "lora_b", "head", "adapted")}
    assert sizes["lora_b"] == 2 * 16 and sizes["adapted"] == 16 * (sizes["lora_a"] // 2)
    ranked, trained = METHODS["flexlora"](ranks=(1, 2)), sizes["lora_b"] + sizes["head"]
    for name, method, down, up in (
        ("fedavg", None, trained + sizes["lora_a"], trained + sizes["lora_a"]),
        ("ffa_lora", METHODS["ffa_lora"](), trained, trained),
        ("flexlora", METHODS["flexlora"](), trained + sizes["lora_a"], trained + sizes["lora_a"]),
        ("flexlora", ranked, trained + sizes["lora_a"], trained + sizes["lora_a"]),
        ("raflora", METHODS["raflora"](ranks=(1, 2)), trained + sizes["lora_a"], trained + sizes["lora_a"]),
        ("hetlora", METHODS["hetlora"](ranks=(1, 2)), trained + sizes["lora_a"], trained + sizes["lora_a"]),
        ("rb_lora", METHODS["rb_lora"](ranks=(1, 2)), trained + sizes["lora_a"], trained + sizes["lora_a"]),
        ("lora_fair", METHODS["lora_fair"](), trained + sizes["lora_a"], trained + sizes["lora_a"]),
        ("flora", METHODS["flora"](), sizes["head"] + sizes["adapted"], trained + sizes["lora_a"]),
        ("fedex_lora", METHODS["fedex_lora"](), sum(sizes.values()), trained + sizes["lora_a"]),
    ):
        methods = {} if method is None else {name: method}
        if getattr(method, "replaces_adapters", False) and not training.momentum_reset:
            continue  # its adapters have no momentum from before
        found = of(federation, model, training.replace(freeze="base"), **methods)
        assert (found.down, found.up) == ({"params": down}, {"params": up}), name
        assert found.kept == (0 if training.momentum_reset else trained + (name != "ffa_lora") * sizes["lora_a"]), name


@pytest.mark.parametrize(
    ("name", "down", "up", "kept"),
    [
        ("fedsa_lora", ("lora_a",), ("lora_a",), ("lora_b", "head")),
        ("rolora", ("lora_a", "lora_b", "head"), ("lora_a", "lora_b", "head"), ()),
        ("fedrot_lora", ("lora_a", "lora_b", "head"), ("lora_a", "lora_b", "head"), ()),
        ("fedsvd", ("lora_a", "lora_b", "head"), ("lora_b", "head"), ()),
    ],
)
def test_parts_of_adapters_that_are_sent(federation, name, down, up, kept):
    model = Model(nn.MLP(4, hidden=(16,)), federation.input_shape, adapters=LoRA(2, 2.0, layers=("all",)))
    found = of(federation, model, **{name: METHODS[name]()})
    assert found.down == {"params": sum(count(model, part)[0] for part in down)}
    assert found.up == {"params": sum(count(model, part)[0] for part in up)}
    assert found.kept == sum(count(model, part)[0] for part in kept)


def test_heads_for_newcomers_are_sent(federation, network):
    """And their mean to every client, which keeps whether it has been in a cohort."""
    (params, _), (head, _) = count(network, other="head"), count(network, "head")
    found = of(federation, network, fedper=METHODS["fedper"]("mean"))
    assert found.up == found.down == {"params": params, "batch_stats": count(network)[1], "fedper": head}
    assert found.kept == head + 1


def test_momentum_that_is_not_reset_is_kept(federation, network):
    training = TRAINING.replace(momentum=0.5, momentum_reset=False)
    found, plain = of(federation, network, training), of(federation, network)
    assert found.kept == count(network)[0] and (found.up, found.down) == (plain.up, plain.down)


def test_entries_of_a_sparse_upload_and_where_they_are(federation, network):
    sizes = [leaf.size for leaf in jax.tree.leaves(jax.eval_shape(network.init, jax.random.key(0)).params)]
    largest = [max(1, int(np.ceil(0.25 * size))) for size in sizes]
    sparse = METHODS["top_k"](share=0.25)
    expected = sum(min(2 * k, size) for k, size in zip(largest, sizes, strict=True))
    found = of(federation, network, top_k=sparse)
    assert found.up["params"] == expected < found.down["params"] == sum(sizes)
    assert of(federation, network, top_k=sparse, noisy_update=METHODS["noisy_update"]()).up["params"] == sum(sizes)


def test_a_model_that_is_measured_is_sent_twice(federation, network):
    (p, s), (c, d) = count(network), (4, 6)
    found = of(federation, network, recalibrate=METHODS["recalibrate"]())
    assert found.down == {"params": 2 * p, "batch_stats": s}  # statistics are measured again, whatever they were
    assert found.up == {"params": p, "recalibrate": s}
    found = of(federation, network, ccvr=METHODS["ccvr"]())
    assert found.down == {"params": 2 * p, "batch_stats": 2 * s}
    assert found.up == {"params": p, "batch_stats": s, "ccvr": c * (1 + d + d * d) + 1}
    in_the_end = of(federation, network, ccvr=METHODS["ccvr"](clients="all"))
    assert in_the_end.up == in_the_end.down == {"params": p, "batch_stats": s}


def test_shapes_are_of_the_precision_that_is_asked_for_now(federation, network):
    """They are remembered by network, which with JAX's float64 has others."""
    with jax.enable_x64(True):
        of(federation, network)
        assert network.initial_shapes().features.dtype == np.float64
    assert network.initial_shapes().features.dtype == np.float32


def matching(tree, patterns):
    """Whether the path of each leaf matches a pattern."""
    return {path: any(fnmatchcase(path, pattern) for pattern in patterns) for path in masks.by_path(tree)}


def hidden(tree, which):
    """The tree with other values in these leaves, by path."""
    leaves = [leaf + jnp.ones((), leaf.dtype) if which[p] else leaf for p, leaf in masks.by_path(tree).items()]
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)


@pytest.mark.parametrize(
    "name", sorted(name for name, kind in METHODS.items() if kind().not_sent or kind().reports_update)
)
def test_declarations_of_what_is_not_sent(name, federation):
    """With another state that is not sent, a client's upload has the same bits; a report that is not sent is equal for
    two clients, or their update times a number."""
    algorithm = FedAvg(TRAINING, {name: METHODS[name]()})
    network, method = network_of(algorithm), algorithm.methods[name]
    state = engine.init(algorithm, network, network.init(jax.random.key(0)), 5, jax.random.key(0))

    @jax.jit
    def train(received, id):
        own = jax.tree.map(lambda leaf: jnp.asarray(leaf)[id], state.clients)
        known = dict(weight=jnp.array(0.3), num_clients=jnp.array(5), mean_size=jnp.array(22.0))
        rows, size = (jnp.asarray(leaf)[id] for leaf in federation.ownership)
        client = Client(id, size, rows=rows, state=own, key=jax.random.key(1), **known)
        context = local.LocalContext(algorithm, network, federation.train, received, state.round, client)
        measured = local.measure(context).get(name, ()) if algorithm.having("measure", "round") else ()
        return local.run(context).upload, measured

    (upload, measured), (other, others) = train(state.server, 1), train(state.server, 2)
    if not algorithm.having("measure", "start"):  # whose state was sent before the first round
        shared = {"shared": state.server.shared[name]}
        shared = hidden(shared, matching(shared, method.not_sent))["shared"]
        assert_same_bits(train(state.server._replace(shared={name: shared}), 1), (upload, measured))
    before, updates = masks.by_path(state.server.variables.params), masks.by_path(upload.mean.params)
    if not algorithm.sends_updates:
        updates = {path: leaf - before[path] for path, leaf in updates.items()}
    report = {"report": upload.total[name], "measured": measured}
    theirs = masks.by_path({"report": other.total[name], "measured": others})
    known = {} if method.has("makes_adapters") and method.has("finish") else matching(report, method.not_sent)
    for path in (path for path, is_known in known.items() if is_known):
        assert_same_bits(masks.by_path(report)[path], theirs[path])
    of_update = matching(upload.total[name], method.reports_update)
    for path, leaf in masks.by_path(upload.total[name]).items():
        if of_update[path]:
            update = next(updates[end] for end in updates if f"/{path}".endswith(f"/{end}"))
            leaf, update = (array / jnp.linalg.norm(array.ravel()) for array in (leaf, update))
            assert_close(leaf, jnp.sign(jnp.vdot(leaf, update)) * update, 1e-5)


@pytest.mark.parametrize("name", sorted(name for name, kind in METHODS.items() if kind().has("dispatch")))
def test_declarations_of_a_dispatch(name, federation):
    """What it neither reads nor makes changes nothing that it makes, and what it does not make stays."""
    algorithm = FedAvg(TRAINING, {name: METHODS[name]()})
    network, method = network_of(algorithm), algorithm.methods[name]
    state = engine.init(algorithm, network, network.init(jax.random.key(0)), 5, jax.random.key(0))

    @jax.jit
    def dispatch(given):
        clients = ClientState({name: given["memory"]}, given["private"])
        arrived = jnp.array([True, True, False, True, False])
        made = server.dispatch(algorithm, state.server, clients, arrived, 1, jax.random.key(2))
        return {"private": made.private, "memory": made.memory[name]}

    given = {"private": state.clients.private, "memory": state.clients.memory[name]}
    made = matching(given, (*method.dispatch_makes, *method.dispatch_keeps))
    used = matching(given, (*method.dispatch_reads, *method.dispatch_makes, *method.dispatch_keeps))
    changed = hidden(given, {path: not is_used for path, is_used in used.items()})
    found, others = masks.by_path(dispatch(given)), masks.by_path(dispatch(changed))
    for path, leaf in masks.by_path(changed).items():
        assert_same_bits(others[path], found[path] if made[path] else leaf)


def test_the_command(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert command.main(["--config=experiments/configs/fedmr/table3.py:smoke", "--arm=fedavg,fedmr"]) == 0
    heading, fedavg, fedmr = (line.split() for line in capsys.readouterr().out.splitlines())
    assert heading[0] == "cell" and (fedavg[0], fedmr[0]) == ("fmnist/fedavg", "fmnist/fedmr")
    model, _, _, none, state, cohort, _ = (int(cell.replace(",", "")) for cell in fedavg[1:])
    assert none == 0 and state == model + 1 and cohort == 10 * 2 * model
    assert int(fedmr[4]) == 10 * 16 + 10 and fedmr[5] == fedavg[5]
    assert command.main(["--config=experiments/configs/fedmr/table3.py:smoke", "--arm=fedav"]) == 2
    error = capsys.readouterr().err
    assert "did you mean 'fedavg'" in error and error.count("\n") == 1


def test_the_command_has_the_papers_numbers_next_to_ours(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    paper = dict(source="X", comparable=True, metric="numbers_sent", values={"fmnist": {"fedmr": 1234567.0}})
    config = "--config=experiments/configs/fedmr/table3.py:smoke"
    assert command.main([config, "--arm=fedavg,fedmr", f"--config.paper={paper}"]) == 0
    heading, fedavg, fedmr, note = capsys.readouterr().out.splitlines()
    assert heading.split()[-4:] == ["dict", "paper", "cohort", "kept"] and fedmr.split()[6] == "1,234,567"
    assert len(fedavg.split()) == len(fedmr.split()) - 1  # empty: the paper's number of it is not known
    assert note == "Paper: X (numbers sent in one direction)."


def test_mismatched_values_are_rejected(federation, network):
    with one_line("head"):
        of(federation, network, TRAINING.replace(freeze="heap"))
