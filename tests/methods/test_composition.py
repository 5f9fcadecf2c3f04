"""Any method on any base: the combinations that the papers compare, and uploads; three rounds each on real digits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.config import build
from experiments.config.plain_values import plain
from experiments.configs import base as config_base
from fedjax_collapse import engine

pytestmark = pytest.mark.slow

BASES = {
    "fedavg": {},
    "fedprox": dict(methods=dict(fedprox=dict(strength=0.01))),
    "fedavgm": dict(server=dict(optimizer=dict(name="damped_momentum", decay=0.5))),
    "moon": dict(methods=dict(moon=dict(strength=1.0))),
    "fedbn": dict(server=dict(batch_norm="local")),
    "fednova": dict(methods=dict(fednova=dict())),
    "scaffold": dict(methods=dict(scaffold=dict())),
}
METHODS = {  # options, and those that switch the method off
    "feddecorr": (dict(strength=0.1), dict(strength=0.0)),
    "fedmr": (dict(intra=0.01, inter=0.1), dict(intra=0.0, inter=0.0)),
    "feduv": (dict(variance=2.5, uniformity=0.5), dict(variance=0.0, uniformity=0.0)),
    "top_k": (dict(share=0.2), dict(share=1.0)),
    "clip_update": (dict(max_norm=0.2), dict(max_norm=1e9)),
    "noisy_update": (dict(deviation=1e-3), dict(deviation=0.0)),
}
TABLE = [
    *[("feddecorr", base) for base in BASES],
    ("fedmr", "fedprox"),
    ("feduv", "fedavgm"),
    ("top_k", "scaffold"),
    ("clip_update", "fedavgm"),
    ("noisy_update", "fedbn"),
]


@pytest.mark.parametrize(("name", "base"), TABLE)
def test_a_method_on_a_base(digits, name, base):
    """The run is finite, logs every term of both, and the method changes the model of the base."""
    options, off = METHODS[name]
    config = config_base.get_config()
    config.network = dict(name="small_cnn", channels=(4, 8))
    config.training.epochs = 1
    config.update(BASES[base])
    config.methods[name] = options
    model, method = build.model(plain(config), digits), build.algorithm(plain(config))
    alone = method.replace(methods={**method.methods, name: method.methods[name].replace(**off)})
    variables, after, loss = jax.device_get(model.init(jax.random.key(0))), [], []
    for algorithm in (method, alone):
        algorithm = jax.tree.map(jnp.asarray, algorithm)
        state = engine.init(algorithm, model, variables, 10, jax.random.key(1))
        rounds = engine.Rounds(model, engine.Layout(engine.Chunked(1), cohort_size=5, max_rounds=3))
        data = engine.Data(digits.ownership)
        state, record, _ = engine.run_rounds(rounds, algorithm, state, data, digits.train, 3)
        after.append(jax.device_get(state.server.variables.params))
        loss.append(np.nanmean(record.metrics["task_loss"], axis=1))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after))
    assert all(np.abs(a - b).max() > 1e-4 for a, b in zip(*map(jax.tree.leaves, after), strict=True) if a.ndim == 4)
    assert all(losses[-1] < losses[0] for losses in loss), "three rounds must learn"
    logged = {key.split("/")[0] for key in record.metrics if "/" in key}
    assert logged == set(config.methods) & {"fedprox", "moon", "feddecorr", "fedmr", "feduv"}
