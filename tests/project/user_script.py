"""A script of a user, for type checkers (``test_typing.py``): each line with ``# type: ignore`` has to be an error."""

from typing import assert_type

import jax
import numpy as np

import fedjax_collapse as fc
from fedjax_collapse import MOON, FedLC, LocalTraining, Model, Participation, Phase, Term, nn, partition, simulate


class FeatureNorm(fc.Regularizer):
    strength: float = 0.01

    def penalty(self, view: fc.LocalView) -> dict[str, Term]:
        squares = (view.outputs.features**2).sum(axis=1)
        return {"norm": Term(self.strength, fc.losses.masked_mean(squares, view.batch.mask))}


source = fc.sources.digits()
parts = partition.dirichlet(source.labels, num_clients=10, alpha=0.1, seed=0)
federation = fc.Federation.from_source(source, parts)
model = Model(nn.MLP(10, hidden=(64,)), federation.input_shape)
training = LocalTraining(batch_size=32, learning_rate=0.05, phases=(Phase("head", 1), Phase("all", 1)))
methods = {
    "feddecorr": fc.FedDecorr(strength=0.1, variant="paper"),
    "fedlc": FedLC(tau=0.5),
    "moon": MOON(temperature=0.5),
    "scaffold": fc.Scaffold(),
    "norm": FeatureNorm(strength=0.1),
}
algorithm = fc.FedAvg(training, methods=methods)
result = simulate(
    federation,
    model,
    algorithm,
    rounds=3,
    key=jax.random.key(0),
    evaluate_every=1,
    participation=Participation(fraction=0.5, sampler=fc.engine.BySize()),
    measurements={"size": lambda view: float(np.abs(view.server.features).mean())},
)
assert_type(result, fc.Result)
assert_type(result.spectra["server"], np.ndarray)
print(result.metrics[-1]["accuracy"], result.personal(0).params)

run = fc.load_run("runs/quickstart/feddecorr/seed0", trust=True)
assert_type(run, fc.LoadedRun)
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
