"""A script of a user, for type checkers (``test_typing.py``): each line with ``# type: ignore`` has to be an error."""

from typing import assert_type

import jax
import numpy as np
from flax import struct

from fedjax_collapse import (
    MOON,
    FedAvg,
    FedDecorr,
    Federation,
    FedLC,
    LoadedRun,
    LocalTraining,
    LocalView,
    Model,
    Participation,
    Phase,
    Regularizer,
    Result,
    Scaffold,
    Term,
    engine,
    load_run,
    losses,
    nn,
    partition,
    simulate,
    sources,
)


@struct.dataclass
class FeatureNorm(Regularizer):
    strength: float = 0.01

    def penalty(self, view: LocalView) -> dict[str, Term]:
        squares = (view.outputs.features**2).sum(axis=1)
        return {"norm": Term(self.strength, losses.masked_mean(squares, view.batch.mask))}


source = sources.digits()
parts = partition.dirichlet(source.labels, num_clients=10, alpha=0.1, seed=0)
federation = Federation.from_source(source, parts)
model = Model(nn.MLP(10, hidden=(64,)), federation.input_shape)
training = LocalTraining(batch_size=32, learning_rate=0.05, phases=(Phase("head", 1), Phase("all", 1)))
methods = {
    "feddecorr": FedDecorr(strength=0.1, variant="paper"),
    "fedlc": FedLC(tau=0.5),
    "moon": MOON(temperature=0.5),
    "scaffold": Scaffold(),
    "norm": FeatureNorm(strength=0.1),
}
algorithm = FedAvg(training, methods=methods)
result = simulate(
    federation,
    model,
    algorithm,
    rounds=3,
    key=jax.random.key(0),
    evaluate_every=1,
    participation=Participation(fraction=0.5, sampler=engine.BySize()),
    measurements={"size": lambda view: float(np.abs(view.server.features).mean())},
)
assert_type(result, Result)
assert_type(result.spectra["server"], np.ndarray)
print(result.metrics[-1]["accuracy"], result.personal(0).params)

run = load_run("runs/quickstart/feddecorr/seed0", trust=True)
assert_type(run, LoadedRun)
assert_type(run.predict(federation.test.inputs), np.ndarray)

FedLC(tua=0.5)  # type: ignore
FedLC(tau="high")  # type: ignore
LocalTraining(epochs="many")  # type: ignore
FeatureNorm(weight=1)  # type: ignore
Participation(sampler="by_size")  # type: ignore
nn.MLP(10, hiden=(64,))  # type: ignore
partition.dirichlet(source.labels, clients=10, alpha=0.1)  # type: ignore
simulate(federation, model, algorithm)  # type: ignore
simulate(federation, model, algorithm, rounds=3, key=jax.random.key(0), evaluate_evry=1)  # type: ignore
print(run.weights)  # type: ignore
