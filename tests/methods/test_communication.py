"""What clients and server exchange in a round: by hand for each method, and FedMR's table 3 to the last digit."""

from fnmatch import fnmatchcase

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from composed_algorithms import network_of
from conftest import TRAINING, assert_close, assert_same_bits, cases

from experiments.commands import show_communication as command
from fedjax_collapse import FedAvg, Model, engine, nn
from fedjax_collapse.config import build
from fedjax_collapse.config.keys import METHODS
from fedjax_collapse.core import masks
from fedjax_collapse.core.records import Client, ClientState, Examples
from fedjax_collapse.nn.adapters import LoRA
from fedjax_collapse.training import local, server
from fedjax_collapse.training.communication import communication


def count(model, part="all", other="none"):
    """Params and running statistics in one part of the network and not in the other."""
    variables = jax.eval_shape(model.init, jax.random.key(0))
    chosen = jax.tree.map(lambda inside, out: inside and not out, model.mask(part), model.mask(other))
    sizes = masks.select(chosen, jax.tree.map(lambda leaf: leaf.size, variables))
    params = sum(size for path, size in sizes.items() if path.startswith("params"))
    return params, sum(sizes.values()) - params


@pytest.mark.slow
@cases(
    ("resnet18", dict(kernel_init="kaiming_fan_out"), (28, 28, 1), 10, 512, 11_182_430),
    ("resnet18", dict(kernel_init="kaiming_fan_out"), (32, 32, 3), 10, 512, 11_183_582),
    ("wide_resnet", {}, (32, 32, 3), 100, 640, 36_564_957),
    ("efficientnet_b0", {}, (64, 64, 3), 8, 640, 4_874_581),
)
def test_table_3_of_fedmr(network, options, shape, classes, dim, state):
    """State dicts one way, with prototypes C d more; 36,628,957 and 4,879,701 are printed as 36.629M and 4.880M."""
    model = Model(build.network(network, options, classes), shape)
    examples = Examples(np.ones((5, *shape), np.uint8), np.ones(5, int), *np.ones((2, shape[-1])))
    found = communication(FedAvg(TRAINING, {"fedmr": METHODS["fedmr"]()}), model, examples)
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
    """P params, H of them of the head, and S statistics of the model; C classes, d features, k numbers of prototypes.

    FedProc's clients do not look at which prototypes there are. FedProto sends prototypes only. FedALA keeps two arrays
    for each of the head and whether it mixed before. FedAMP sends params and receives mixtures; what the server alone
    uses is not kept by clients. FedPAC sends heads and the features' variance and means besides prototypes, and
    receives heads. FedFomo sends the model and what others gain, and receives models and whose they are. A model that
    is measured is sent twice, without statistics that are measured again. Heads for newcomers are sent, and their mean
    to every client, which keeps whether it has been in a cohort.
    """
    (p, s), (h, _), (c, d) = count(network), count(network, "head"), (4, 6)
    model, body, k = {"params": p, "batch_stats": s}, {"params": p - h, "batch_stats": s}, c * d + c
    table = [  # a method and its options; what is sent down and up, and kept
        ("feddecorr", {}, model, model, 0),
        ("scaffold", {}, model | {"scaffold": p}, model | {"scaffold": p}, p),
        ("feddyn", {}, model, model, p),
        ("feddc", {}, model | {"feddc": p}, model | {"feddc": p}, 2 * p),
        ("fedcm", {}, model | {"fedcm": p}, model, 0),
        ("fednova", {}, model, model | {"fednova": 1}, 0),
        ("fedexp", {}, model, model | {"fedexp": 1}, 0),
        ("moon", {}, model, model, p + s + 1),
        ("fedproc", {}, model | {"fedproc": c * d}, model | {"fedproc": k}, 0),
        ("fedmr", {}, model | {"fedmr": k}, model | {"fedmr": k}, 0),
        ("fedmr", dict(prototypes="one_hot"), model, model, 0),
        ("noisy_update", {}, model, model, 0),
        ("clip_update", {}, model, model, 0),
        ("per_fedavg", {}, model, model, 0),
        ("apfl", {}, model, model, p + s + 1),
        ("pfedme", {}, model, model, p + s),
        ("fedbabu", {}, body, body, 0),
        ("fedproto", {}, {"fedproto": k}, {"fedproto": k}, p + s),
        ("fedala", {}, model, model, 2 * h + 1),
        ("fedamp", {}, {"fedamp": p}, {"params": p}, 2 * p + s),
        ("fedpac", {}, model | {"fedpac": k}, model | {"fedpac": k + c * d + 1}, h + c * d + 1),
        ("fedfomo", dict(models=3), {"fedfomo": 3 * (p + s) + 3}, model | {"fedfomo": 3}, 4 * (p + s) + 2 * 3),
        ("fedper", dict(newcomers="mean"), body | {"fedper": h}, body | {"fedper": h}, h + 1),
        ("recalibrate", {}, {"params": 2 * p, "batch_stats": s}, {"params": p, "recalibrate": s}, 0),
        ("ccvr", {}, {"params": 2 * p, "batch_stats": 2 * s}, model | {"ccvr": c * (1 + d + d * d) + 1}, 0),
        ("ccvr", dict(clients="all"), model, model, 0),
    ]
    for name, options, *expected in table:
        found = of(federation, network, **{name: METHODS[name](**options)})
        assert [found.down, found.up, found.kept] == expected, name
        assert found.counters == ("batch_stats" in found.up), name


def test_a_clip_that_follows_a_quantile(federation):
    """The server sends it, and the client a bit."""
    network = Model(nn.MLP(4, hidden=(6,)), federation.input_shape)
    params = {"params": count(network)[0]}
    found = of(federation, network, dp_fedavg=METHODS["dp_fedavg"]())
    assert found.up == found.down == params and found.kept == 0
    found = of(federation, network, dp_fedavg=METHODS["dp_fedavg"](quantile=0.5))
    assert found.up == found.down == params | {"dp_fedavg": 1}


@cases(("head", True), ("batch_norm", True), ("head", False))
def test_private_parts_stay_and_frozen_ones_are_not_sent(part, is_private, federation, network):
    params, statistics = count(network, other=part)
    given = dict(private=part) if is_private else dict(training=TRAINING.replace(freeze=part))
    found = of(federation, network, **given)
    shared = {"params": params} | ({"batch_stats": statistics} if statistics else {})
    assert found.up == found.down == shared
    assert found.kept == is_private * sum(count(network, part)) and found.counters == (statistics > 0)


@cases(("fedrod", "head/personal"), ("feddbe", "head/shift"))
def test_own_parts_of_a_method_s_head_stay(name, own, federation):
    algorithm = FedAvg(TRAINING, {name: METHODS[name]()})
    network = network_of(algorithm)
    (params, _), (kept, _) = count(network, other=own), count(network, own)
    found = communication(algorithm, network, federation.train)
    assert found.up == found.down == {"params": params} and found.kept == kept > 0


FACTORS, PRODUCTS = ("lora_a", "lora_b", "head"), ("adapted", "head")
SENT = [  # parts that are sent down, and up, and kept by clients
    (None, {}, FACTORS, FACTORS, ()),
    ("ffa_lora", {}, FACTORS[1:], FACTORS[1:], ()),
    *((name, options, FACTORS, FACTORS, ()) for name, options in (
        ("flexlora", {}), ("lora_fair", {}), ("rolora", {}), ("fedrot_lora", {}),
        *((name, dict(ranks=(1, 2))) for name in ("flexlora", "raflora", "hetlora", "rb_lora")),
    )),
    ("flora", {}, PRODUCTS, FACTORS, ()),
    ("fedex_lora", {}, (*FACTORS, "adapted"), FACTORS, ()),  # the residual is added to kernels
    ("fedsa_lora", {}, ("lora_a",), ("lora_a",), FACTORS[1:]),
    ("fedsvd", {}, FACTORS, FACTORS[1:], ()),
]  # fmt: skip


@pytest.mark.parametrize("training", [TRAINING, TRAINING.replace(momentum=0.5, momentum_reset=False)])
@pytest.mark.parametrize(("name", "options", "down", "up", "kept"), SENT)
def test_adapters_are_sent_as_factors(federation, training, name, options, down, up, kept):
    """And the head; momentum that is not reset is kept of what is trained."""
    model = Model(nn.MLP(4, hidden=(16,)), federation.input_shape, adapters=LoRA(2, 2.0, layers=("all",)))
    methods = {} if name is None else {name: METHODS[name](**options)}
    if not training.momentum_reset and (
        name == "rolora" or any(getattr(m, "replaces_adapters", False) for m in methods.values())
    ):
        return  # its adapters have no momentum from before
    found = of(federation, model, training.replace(freeze="base"), **methods)

    def size(parts):
        return sum(count(model, part)[0] for part in parts)

    assert size(("lora_b",)) == 2 * 16 and size(("adapted",)) == 16 * (size(("lora_a",)) // 2)
    assert (found.down, found.up) == ({"params": size(down)}, {"params": size(up)})
    trained = FACTORS[1:] if name == "ffa_lora" else FACTORS
    assert found.kept == size(kept) + (0 if training.momentum_reset else size(trained))


def test_entries_of_a_sparse_upload_and_where_they_are(federation, network):
    sizes = [leaf.size for leaf in jax.tree.leaves(jax.eval_shape(network.init, jax.random.key(0)).params)]
    largest = [max(1, int(np.ceil(0.25 * size))) for size in sizes]
    sparse = METHODS["top_k"](share=0.25)
    expected = sum(min(2 * k, size) for k, size in zip(largest, sizes, strict=True))
    found = of(federation, network, top_k=sparse)
    assert found.up["params"] == expected < found.down["params"] == sum(sizes)
    assert of(federation, network, top_k=sparse, noisy_update=METHODS["noisy_update"]()).up["params"] == sum(sizes)


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


def test_momentum_that_is_not_reset_is_kept(federation, network):
    training = TRAINING.replace(momentum=0.5, momentum_reset=False)
    found, plain = of(federation, network, training), of(federation, network)
    assert found.kept == count(network)[0] and (found.up, found.down) == (plain.up, plain.down)


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if kind().not_sent or kind().reports_update])
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


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if kind().has("dispatch")])
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
    """With the paper's numbers next to ours."""
    monkeypatch.setenv("COLUMNS", "200")
    paper = dict(source="X", comparable=True, metric="numbers_sent", values={"fmnist": {"fedmr": 1234567.0}})
    config = "--config=experiments/configs/fedmr/table3.py:smoke"
    assert command.main([config, "--arm=fedavg,fedmr", f"--config.paper={paper}"]) == 0
    heading, fedavg, fedmr, note = (line.split() for line in capsys.readouterr().out.splitlines())
    assert heading[0] == "cell" and heading[-4:] == ["dict", "paper", "cohort", "kept"]
    assert (fedavg[0], fedmr[0], fedmr[6]) == ("fmnist/fedavg", "fmnist/fedmr", "1,234,567")
    model, _, _, none, state, cohort, _ = (
        int(cell.replace(",", "")) for cell in fedavg[1:]
    )  # the paper's is not known
    assert none == 0 and state == model + 1 and cohort == 10 * 2 * model
    assert int(fedmr[4]) == 10 * 16 + 10 and fedmr[5] == fedavg[5]
    assert " ".join(note) == "Paper: X (numbers sent in one direction)."
    assert command.main([config, "--arm=fedav"]) == 2
    error = capsys.readouterr().err
    assert "did you mean 'fedavg'" in error and error.count("\n") == 1
