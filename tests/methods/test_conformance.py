"""Every method that lies in ``methods/`` keeps the contract; a new file is tested by itself."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from composed_algorithms import composed_algorithms, network_of
from conftest import assert_same_bits, one_line

import fedjax_collapse
from fedjax_collapse import (
    REGRESSION,
    FedAvg,
    LocalTraining,
    Method,
    Model,
    Participation,
    engine,
    nn,
    simulate,
)
from fedjax_collapse.config.keys import METHODS
from fedjax_collapse.core import masks
from fedjax_collapse.methods.base import exclusives

TRAINING = LocalTraining(epochs=2, batch_size=8, learning_rate=0.05, momentum=0.5)
ALGORITHMS = composed_algorithms(TRAINING)
ALGORITHMS += [  # adapters' methods that the composed ones leave out, and options that keep something else
    FedAvg(TRAINING, {name: kind()})
    for name, kind in METHODS.items()
    if not any(name in composed.methods for composed in ALGORITHMS)
]
ALGORITHMS += [
    FedAvg(TRAINING, {"afl": METHODS["afl"]()}),
    FedAvg(TRAINING, {"ccvr": METHODS["ccvr"](clients="all")}),
    FedAvg(TRAINING.replace(momentum_reset=False), {"scaffold": METHODS["scaffold"]()}),
]
OUT_OF_RANGE = {  # values that are not in the range, or among the choices, of the option
    "afl": dict(gamma=-1.0, finetune=1),
    "aligned_muon": dict(gamma=1.5, scale=0.0, beta=1.0, weight_decay=-1.0, max_norm=0.0),
    "alie": dict(share=1.5, z=-1.0),
    "apfl": dict(alpha=1.5, adaptive=1, variant="code"),
    "backdoor": dict(share=-0.1, target=-1, poisoned=0.0, size=0),
    "balanced_softmax": dict(tau=-1.0, vacant="floor"),
    "bulyan": dict(attackers=-1),
    "ccvr": dict(when="never", clients="some", samples=0),
    "centred_clipping": dict(max_norm=0.0, iterations=0),
    "clip_update": dict(max_norm=0.0),
    "corrected_muon": dict(alpha=0.0, damped=1),
    "decov": dict(strength=-1.0),
    "ditto": dict(strength=-1.0, epochs=0),
    "dp_fedavg": dict(
        clip=0.0, noise_multiplier=-1.0, noise_cohort_size=0, quantile=1.5, clip_rate=0.0, bit_noise=0.0, bands=0
    ),
    "fed3r": dict(ridge=0.0, normalize=1, finetune="all"),
    "fedala": dict(part=1, rate=0.0, share=0.0, threshold=0.0, max_epochs=0),
    "fedamp": dict(strength=-1.0, alpha=0.0, sigma=0.0, variant="code"),
    "fedasam": dict(eta=-0.1),
    "fedcgs": dict(covariance="class"),
    "fedcm": dict(alpha=0.0),
    "feddbe": dict(strength=-1.0, momentum=0.0),
    "feddc": dict(alpha=-1.0, evaluate="all"),
    "feddr_plus": dict(beta=2.0),
    "feddyn": dict(alpha=0.0),
    "fedetf": dict(vacant="eps"),
    "fedexp": dict(eps=0.0, eps_decay=1.5, variant="mine"),
    "fedfomo": dict(models=0, validation=1.0, explore=1.5, explore_decay=-1.0, variant="code"),
    "fedgela": dict(temperature=0.0),
    "fedlc": dict(tau=-1.0, denominator="own", vacant="eps", counts="server"),
    "fedlesam": dict(rho=float("inf"), stored="client"),
    "fedmr": dict(inter=-1.0, negatives="some", submission=1.5, lite=-1, min_count=1),
    "fedntd": dict(strength=-1.0, temperature=0.0),
    "fedpac": dict(strength=-1.0, head_epochs=0, body_epochs=0, average="size"),
    "fedper": dict(newcomers="last"),
    "fedproc": dict(ramp_rounds=0.0),
    "fedproto": dict(strength=-1.0, average="size", collected="last", prediction="nearest"),
    "fedprox": dict(strength=float("nan")),
    "fedrcl": dict(levels="first", temperature=0.0, threshold=1.5, relaxation=-1.0),
    "fedrep": dict(head_epochs=0),
    "fedrod": dict(tau=-1.0, variant="code"),
    "fedrot_lora": dict(strength=0.0),
    "fedrs": dict(alpha=1.5, scale="linear"),
    "fedsa_lora": dict(private_head=1),
    "fedsam": dict(rho=-0.1, adaptive=1),
    "feduv": dict(variance=-2.0, median="upper"),
    "fedvls": dict(logit=-1.0, variant="code"),
    "flora": dict(ranks=(0,)),
    "fltrust": dict(root=-1),
    "gaussian_attack": dict(share=1.5, mean=float("nan"), deviation=-1.0),
    "geometric_median": dict(iterations=0, smoothing=0.0),
    "hetlora": dict(ranks=(0,), average="size", self_pruning=1, strength=-1.0, gamma=1.0, least=0),
    "ipm": dict(share=1.5, scale=0.0),
    "krum": dict(attackers=-1, select=-1),
    "label_flip": dict(share=1.5),
    "lora_fair": dict(strength=-1.0, objective="sine", steps=0, rate=0.0),
    "min_max": dict(share=1.5),
    "moon": dict(strength=-1.0, temperature=0.0, first_round="skip"),
    "noisy_update": dict(deviation=-1.0),
    "norm_bound": dict(max_norm=0.0),
    "per_fedavg": dict(alpha=0.0, order="so", delta=0.0, hessian="meta", steps=0),
    "pfedme": dict(strength=0.0, inner_steps=0, inner_rate=0.0, beta=-1.0, inner_decay=-1.0),
    "raflora": dict(ranks=(0,)),
    "rb_lora": dict(ranks=(0,), balanced="both"),
    "rolora": dict(freeze_head=1),
    "scaffold": dict(strength=-1.0, normaliser="none"),
    "sigreg": dict(strength=-1.0, directions=0, points="both", levels="first"),
    "sign_flip": dict(share=1.5, scale=0.0),
    "singular_value_variance": dict(strength=-1.0),
    "structured_decov": dict(eta=-0.5, num_groups=0),
    "top_k": dict(share=0.0),
    "trimmed_mean": dict(trim=-1),
    "vicreg": dict(covariance=-1.0, eps=0.0),
    "visreg": dict(strength=-1.0, directions=0),
    "weak_sigreg": dict(strength=-1.0, width=0),
}
NEEDING_CLASSES = (
    "balanced_softmax", "ccvr", "feddr_plus", "fedetf", "fedgela", "fedlc", "fedrs", "fedvls", "fedrcl", "fedntd",
    "afl", "fed3r", "fedcgs", "fedpac", "fedproto", "fedrod", "backdoor", "label_flip",
)  # fmt: skip
KEY = 9  # of five clients one takes no step in three rounds, one is in a later round only, one loses its upload
UNRELIABLE = Participation(0.6, dropout=0.2, stragglers=0.5, upload_loss=0.5)


def start(network, algorithm):
    return engine.init(algorithm, network, network.init(jax.random.key(0)), 5, jax.random.key(KEY))


def run(federation, network, algorithm, client_map, state, num_rounds=3):
    """State after, and record of, rounds with cohorts of three of the five clients."""
    rounds = engine.RoundSpec(network, engine.Layout(client_map, cohort_size=3, max_rounds=3))
    data = engine.Assignment(federation.ownership, jax.tree.map(jnp.asarray, UNRELIABLE))
    advance = engine.run_rounds(rounds, algorithm, state, data, federation.train, num_rounds)
    return advance.state, jax.device_get(advance.record)


def values(state):
    return jax.device_get(state._replace(key=jax.random.key_data(state.key)))


def test_methods_are_found():
    """By the names of their files, without the modules that they share and their contract."""
    files = {path.stem for path in Path(fedjax_collapse.methods.__file__).parent.rglob("[a-z]*.py")}
    assert METHODS.keys() == files - {"base"}
    assert all(issubclass(method, Method) for method in METHODS.values())


def test_every_method_is_a_public_name():
    """Type checkers see no class that is only found by its file: it has a line in ``methods/__init__.py``."""
    for method in METHODS.values():
        assert getattr(fedjax_collapse, method.__name__) is method


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_wrong_options_are_named(name):
    """Other types than the option's are in ``test_library_calls.py``."""
    kind = METHODS[name]
    for option, value in OUT_OF_RANGE[name].items():
        with one_line(f"^{kind.__name__}: {option} "):
            FedAvg(methods={"it": kind(**{option: value})}).check()


@pytest.mark.parametrize("hook", exclusives())
def test_methods_with_one_exclusive_hook_do_not_go_together(hook):
    owners = [kind() for kind in METHODS.values() if kind().has(hook)]
    assert owners
    for other in owners:
        with one_line(f"^methods a and b: each ({'|'.join(exclusives().values())})"):
            FedAvg(methods={"a": owners[0], "b": other}).check()


def test_methods_that_need_classes():
    regression = Model(nn.MLP(4, hidden=(6,)), (8, 8, 2), task=REGRESSION)
    for name in NEEDING_CLASSES:
        with one_line(r"no classes|(a|the) task of classification"):
            FedAvg(methods={"it": METHODS[name]()}).check(regression)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: "-".join(algorithm.methods))
def test_contract(float64, federation, algorithm):
    """With partial cohorts, of whom some drop out, take half of their steps, or lose their upload.

    Numbers are traced, rounds are finite, a client outside the cohort keeps its state, but for what the server makes
    for it, one whose upload is lost does not, if the method has any, and a run continues with the same bits from
    nothing but its state. That layouts agree is in ``tests/engine/test_devices.py``, for all methods.
    """
    methods, network = algorithm.methods, network_of(algorithm)
    for name, method in methods.items():
        assert method.enabled() and all(np.ndim(leaf) == 0 for leaf in jax.tree.leaves(method)), name
    algorithm = jax.tree.map(jnp.asarray, algorithm)
    before = jax.device_get(start(network, algorithm).clients)
    dispatched = [name for name, method in methods.items() if method.has("dispatch")]
    takes_mean = any(getattr(method, "newcomers", "") == "mean" for method in methods.values())  # in place of its head

    def kept(clients, ids):
        memory = {name: own for name, own in clients.memory.items() if name not in dispatched}
        private = {} if takes_mean else clients.private
        return jax.tree.map(lambda leaf: np.asarray(leaf)[ids], (private, memory))

    chunked = functools.partial(run, federation, network, algorithm, engine.Chunked(2))
    state, record = chunked(start(network, algorithm))
    state, arrived = values(state), record.metrics["arrived"]
    for path, leaf in masks.by_path((state.server, state.clients)).items():
        assert np.isfinite(leaf).all(), path
    for name, metric in record.metrics.items():
        assert (np.isfinite(metric) == (record.steps > 0)).all(), name

    absent = np.flatnonzero((record.steps == 0).all(axis=0))
    assert len(absent)
    assert_same_bits(kept(before, absent), kept(state.clients, absent))
    lost = np.flatnonzero((arrived == 0).any(axis=0) & ~(arrived == 1).any(axis=0))
    assert len(lost)
    for name in before.memory:
        own = [(of.memory[name], of.private if name in dispatched else ()) for of in (before, state.clients)]
        pairs = [*zip(*map(jax.tree.leaves, own), strict=True)]
        assert not pairs or any((a[lost] != b[lost]).any() for a, b in pairs), name

    after_one, _ = chunked(start(network, algorithm), num_rounds=1)
    outside = np.flatnonzero(record.steps[0] == 0)
    assert len(outside) >= 2 and (record.steps[1:, outside] > 0).any()
    assert_same_bits(kept(before, outside), kept(after_one.clients, outside))
    restored = jax.tree.map(jnp.array, jax.device_get(after_one._replace(key=None)))._replace(key=after_one.key)
    resumed, _ = chunked(restored, num_rounds=2)
    assert_same_bits(values(resumed), state)


def silent(name):
    """FedAvg with the method at strengths of 0."""
    changes = dict.fromkeys(METHODS[name].strengths, 0.0)
    if name == "fedproc":
        changes = {"ramp_rounds": 1.0}  # plain cross-entropy from the second round on, as in the first
    return FedAvg(TRAINING, {name: METHODS[name](**changes)})


@pytest.mark.parametrize(
    "name", [name for name, kind in METHODS.items() if kind.strengths or kind.enabled is not Method.enabled]
)
def test_a_method_that_does_nothing_is_absent(name):
    assert silent(name).enabled() == FedAvg(TRAINING)


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if kind.strengths])
def test_a_method_with_one_strength_is_there(name):
    for kept in METHODS[name].strengths:
        others = dict.fromkeys(METHODS[name].strengths, 0.0) | {kept: 0.5}
        assert METHODS[name](**others).enabled()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedprox", "fedproc"])
def test_a_run_is_that_of_the_enabled_algorithm_bit_for_bit(federation, name):
    both = FedAvg(TRAINING), silent(name)
    results = [simulate(federation, network_of(a), a, rounds=2, key=jax.random.key(0)) for a in both]
    assert_same_bits(results[0].variables, results[1].variables)
    assert results[0].metrics == results[1].metrics
