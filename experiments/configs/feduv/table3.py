"""Table 3 of FedUV (Son et al., CVPR 2024): five methods with 10, 20 and 40 local epochs.

    python experiments/launch.py --config=experiments/configs/feduv/table3.py:offline --workdir=runs/uv3

* ``:full``: STL10 with alpha 0.01 and Office-Home. ``docs/data.md`` says how to get the data.
* ``:offline``: 3, 6 and 12 epochs on digits and on four domains of glyphs, with a small network; not comparable.
* ``:smoke``: two rounds of the fewest epochs of each.

Not known to us: the paper's numbers but FedUV's, and those of 10 epochs, which are table 1's.
"""

from ml_collections import ConfigDict

from experiments.config.published import by_setting, chosen, make_small
from experiments.configs.feduv import base
from experiments.configs.feduv.table1 import PAPER as TABLE1

EPOCHS = (10, 20, 40)  # paper
PAPER = {  # percent: STL10 with each number, Office-Home with each
    **{arm: (row[0], None, None, row[-1], None, None) for arm, row in TABLE1.items()},
    "feduv": (30.4, 31.5, 25.9, 45.4, 46.1, 35.9),
}


def get_config(arg: str = "offline") -> ConfigDict:
    return chosen("table3.py", arg, dict(full=_full, offline=_offline, smoke=_smoke))


def _settings(names, sets, numbers):
    def with_epochs(setting, epochs):
        return setting | dict(training=setting.get("training", {}) | dict(epochs=epochs))

    return {f"{name}-{epochs}": with_epochs(sets[name], epochs) for name in names for epochs in numbers}


def _full(config):
    base.full(config, base.arms())
    config.settings = settings = _settings(("stl10", "officehome"), base.data_sets(base.arms(), 0.01), EPOCHS)
    config.paper = dict(source=f"{base.SOURCE}, Table 3", comparable=True, values=by_setting(PAPER, settings))


def _offline(config):
    base.offline(config, base.arms())
    config.rounds = 10
    config.settings = settings = _settings(("digits", "domains"), base.offline_sets(base.arms(), 0.01), (3, 6, 12))
    source, values = f"{base.SOURCE}, Table 3", by_setting(PAPER, settings)
    config.paper = dict(source=source, comparable=False, why=base.OFFLINE_WHY, values=values)


def _smoke(config):
    _offline(config)
    make_small(config, ["digits-3", "domains-3"], name="small_cnn", channels=(16,), projector="feduv")
