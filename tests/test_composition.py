"""Any regularizer on any algorithm: the combinations that the papers compare, three rounds each on real digits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import build
from experiments.configs import base as config_base
from fedjax_collapse import engine

BASES = {
    "fedavg": {},
    "fedprox": dict(regularizers=dict(fedprox=dict(strength=0.01))),
    "fedavgm": dict(server_optimizer=dict(name="damped_momentum", decay=0.5)),
    "moon": dict(regularizers=dict(moon=dict(strength=1.0))),
    "fedbn": dict(batch_norm="local"),
    "fednova": dict(algorithm=dict(name="fednova")),
    "scaffold": dict(algorithm=dict(name="scaffold")),
}
STRENGTHS = {  # of the method, and the same terms switched off
    "feddecorr": dict(strength=0.1),
    "fedmr": dict(intra=0.01, inter=0.1),
    "feduv": dict(variance=2.5, uniformity=0.5),
}
TABLE = [
    *[("feddecorr", base) for base in BASES],
    *[("fedmr", base) for base in ("fedavg", "fedprox")],
    *[("feduv", base) for base in ("fedavg", "fedavgm")],
]


@pytest.mark.parametrize(("name", "base"), TABLE)
def test_a_method_on_a_base(digits, name, base):
    """Finite, and different from the base alone: every term of both is logged, and the method's changes the model."""
    config = config_base.get_config()
    config.network = dict(name="small_cnn", channels=(4, 8))
    config.training.epochs = 1
    config.update(BASES[base])
    config.regularizers = {**config.regularizers.to_dict(), name: STRENGTHS[name]}
    model, method = build.model(config, digits), build.algorithm(config)
    alone = method.replace(
        regularizers={
            **method.regularizers,
            name: method.regularizers[name].replace(**dict.fromkeys(STRENGTHS[name], 0.0)),
        }
    )
    variables, after, loss = jax.device_get(model.init(jax.random.key(0))), [], []
    for algorithm in (method, alone):
        algorithm = jax.tree.map(jnp.asarray, algorithm)
        state = engine.init(algorithm, model, variables, 10, jax.random.key(1))
        state, record, _ = engine.run_rounds(
            algorithm, state, digits.train, digits.ownership, 3,
            model=model, layout=engine.Layout(engine.Chunked(1), cohort_size=5, max_rounds=3),
        )  # fmt: skip
        after.append(jax.device_get(state.server.variables.params))
        loss.append(np.nanmean(record.metrics["task_loss"], axis=1))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after))
    assert all(np.abs(a - b).max() > 1e-4 for a, b in zip(*map(jax.tree.leaves, after), strict=True) if a.ndim == 4)
    assert all(losses[-1] < losses[0] for losses in loss), "three rounds must learn"
    logged = {key.split("/")[0] for key in record.metrics if "/" in key}
    assert logged == set(method.regularizers)
