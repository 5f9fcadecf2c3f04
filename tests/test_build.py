"""From configs to objects."""

import jax
import pytest

from experiments import build
from experiments.configs import base, quickstart
from fedjax_collapse import UserError, engine


def test_a_partition_per_seed_or_one_for_all():
    config = base.get_config()
    config.clients, config.partition.alpha = 4, 1.0
    own = build.federations(config, [0, 1])
    assert own[0].hashes()["partition"] != own[1].hashes()["partition"]
    assert own[0].ownership.rows.shape == own[1].ownership.rows.shape  # one compiled program
    config.partition.seed = 3
    shared = build.federations(config, [0, 1])
    assert shared[0].hashes() == shared[1].hashes() != own[0].hashes()


def test_iid_needs_no_other_change():
    config = base.get_config()
    config.partition.name = "iid"
    sizes = build.federations(config, [0])[0].ownership.sizes
    assert sizes.max() - sizes.min() <= 1


def test_arms_override_the_rest_and_another_name_replaces_the_dict():
    config = quickstart.get_config()
    config.network = {"name": "small_cnn", "channels": (4, 4)}
    config.arms = {"other": {"network": {"name": "mlp", "hidden": (3,)}, "training": {"epochs": 2}}}
    arm = build.resolve_arm(config, "other")
    assert arm.network.to_dict() == {"name": "mlp", "hidden": (3,)}
    assert (arm.training.epochs, arm.training.batch_size) == (2, 32)
    assert config.training.epochs == 5


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("sgd", {"learning_rate": 1.0, "momentum": 0.5}),
        ("damped_momentum", {"decay": 0.5}),
        ("yogi", {"learning_rate": 0.1}),
    ],
)
def test_server_optimizers(name, arguments):
    config = base.get_config()
    config.server_optimizer = {"name": name, **arguments}
    optimizer = build.algorithm(config).server_optimizer
    assert sorted(jax.tree.leaves(optimizer)) == sorted(arguments.values())  # traced
    optimizer().init({"w": jax.numpy.zeros(2)})


def test_layouts():
    config = base.get_config()
    layouts = {
        ("auto", 0): engine.Sharded(2, engine.Chunked(1)),
        ("auto", 3): engine.Sharded(2, engine.Chunked(3)),
        ("chunked", 4): engine.Chunked(4),
        ("vectorized", 0): engine.Vectorized(),
        ("loop", 0): engine.Loop(),
    }
    for (layout, clients_at_once), expected in layouts.items():
        config.engine.layout, config.engine.clients_at_once = layout, clients_at_once
        assert build.client_map(config) == expected
    config.clients, config.engine.layout, config.engine.clients_at_once = 1, "auto", 0
    assert build.client_map(config) == engine.Chunked(1)


def test_unknown_option_names_the_nearest():
    with pytest.raises(UserError, match="unknown option of training 'momentm': did you mean 'momentum'"):
        config = base.get_config()
        config.training = {"momentm": 0.9}
        build.algorithm(config)
