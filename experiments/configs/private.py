"""What differential privacy of clients costs: accuracy and effective rank of federated averaging on digits, in a minute
on two cores.

    fedjax-collapse launch --config=private

200 clients, each of which takes part in a round with probability 0.1, so that every arm weights them equally and
divides by 20. ``clipped`` has the clip of the private arms and no noise; ``private`` spends epsilon 4 at delta 1e-3 in
100 rounds; and in ``as_if`` 20 clients stand for 1,000 of 10,000, as in pfl-research's benchmarks, with epsilon 4 at
delta 1e-5: its epsilon is that of a federation which was not trained, and its column says so. docs/privacy.md explains
all three. ``private:smoke`` is one seed, to see it run.
A demonstration on small data: not comparable with published tables.
"""

from ml_collections import ConfigDict

from experiments.configs import base


def private(clip: float, **options) -> dict:
    """Returns the method's part of an arm."""
    return dict(dp_fedavg=dict(clip=clip, **options))


@base.variants("", "smoke")
def get_config(config: ConfigDict, arg: str) -> None:
    config.clients, config.participation, config.rounds, config.seeds = 200, 0.1, 100, (0, 1, 2)
    config.cohort.sampler.name = "poisson"
    config.partition = dict(name="iid", seed=0)
    config.network = dict(name="mlp", hidden=(32,))
    config.training.update(epochs=2, batch_size=8, learning_rate=0.05)
    config.evaluate_every = 10
    config.arms = {
        "fedavg": dict(server=dict(weighting="expected")),
        "clipped": dict(methods=private(0.1, noise_multiplier=0.0)),
        "private": dict(methods=private(0.1), privacy=dict(epsilon=4.0, delta=1e-3, population=200)),
        "as_if": dict(
            methods=private(0.1, noise_cohort_size=1000), privacy=dict(epsilon=4.0, delta=1e-5, population=10_000)
        ),
    }
    if arg == "smoke":
        config.seeds = (0,)
