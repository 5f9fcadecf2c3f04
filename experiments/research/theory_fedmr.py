"""Clients that lack whole classes: what ``theory.py`` shows of FedMR.

Fan et al., "Federated Learning with Partially Class-Disjoint Data via Manifold Reshaping" (TMLR 2023). The bound of its
theorem 1 is in ``fedjax_collapse/analysis/missing_classes.py``.
"""

import jax
import numpy as np

from experiments.research import theory_figures
from experiments.research.theory_records import Columns, Options, Study, columns_of
from fedjax_collapse import FedAvg, Federation, FedMR, LocalTraining, Model, measurements, nn, partition, simulate
from fedjax_collapse.analysis.geometry import on_sphere, uniformity

# Section 3.2: classes are uniform on discs, and classifiers, as the paper states them, are linear without bias.
RADIUS = 0.5
CENTRES = np.array([[1, 0], [0, 3**0.5], [0, -(3**0.5)]])
ALL_CLASSES = np.array([[1, 0], [-(3**0.5) / 2, 0.5], [-(3**0.5) / 2, -0.5]])
CLIENTS = {
    "classes 1, 2": np.array([[0.5, -(3**0.5) / 2], [-0.5, 3**0.5 / 2], [0, 0]]),
    "classes 1, 3": np.array([[0.5, 3**0.5 / 2], [0, 0], [-0.5, -(3**0.5) / 2]]),
    "classes 2, 3": np.array([[0, 0], [0, 1], [0, -1]]),
}

CLASSES, INPUTS = 6, 8  # of the simulated data of ``sphere``
HELD = 2  # classes of each of its three clients
STRENGTHS = (0.01, 0.1, 1.0)  # of both terms of FedMR
_EXAMPLES, _TEST = 600, 240


def discs(options: Options) -> Columns:
    """Returns the rows of the five classifiers of section 3.2, and how far each disc is from another class's region.

    ``margin`` is the distance of the disc from the nearest decision boundary of its class, negative if the boundary
    cuts the disc; ``turn``, in degrees, and ``cosine`` compare the row with that of the classifier of all classes.
    """
    del options
    rows = []
    for name, weights in {"all classes": ALL_CLASSES, **CLIENTS, "mean": np.mean([*CLIENTS.values()], axis=0)}.items():
        for c, (weight, best, centre) in enumerate(zip(weights, ALL_CLASSES, CENTRES, strict=True)):
            apart = np.delete(weight - weights, c, axis=0)
            margin = np.min(apart @ centre / np.linalg.norm(apart, axis=1)) - RADIUS
            length = np.linalg.norm(weight)
            cosine = min(weight @ best / length, 1) if length else np.nan
            row = {"classifier": name, "class": c + 1, "centre_x": centre[0], "centre_y": centre[1], "radius": RADIUS}
            row |= {"x": weight[0], "y": weight[1], "length": length}
            rows.append({**row, "cosine": cosine, "turn": np.degrees(np.arccos(cosine)), "margin": margin})
    return columns_of(rows)


def sphere(options: Options) -> Columns:
    """Returns three-dimensional features, scaled to length 1, of test examples of all classes under a local model.

    It is the model of the first client after local training in the last round, before averaging. In the first arm this
    client has all data. ``uniformity`` (lower is more even) is of these features, ``accuracy`` of the server's model.
    """
    rows = []
    for seed in range(options.seeds):
        inputs, labels = _clouds(_EXAMPLES, [seed, 0])
        disjoint = partition.partially_disjoint(labels, CLASSES // HELD, HELD, seed)
        fedmr = {f"FedMR {s:g}": (disjoint, {"fedmr": _fedmr(s)}) for s in STRENGTHS}
        arms = {"centralised": ([np.arange(_EXAMPLES)], {}), "FedAvg": (disjoint, {}), **fedmr}
        for arm, (parts, methods) in arms.items():
            federation = Federation.from_inputs(inputs, labels, parts, *_clouds(_TEST, [seed, 1]))
            accuracy, features, of = _trained(federation, methods, seed)
            row = {"arm": arm, "seed": seed, "accuracy": accuracy, "uniformity": uniformity(features)}
            points = on_sphere(features).tolist()
            held = np.isin(of, labels[parts[0]])
            rows += [
                {**row, "class": c, "held": int(h), "x": x, "y": y, "z": z}
                for c, h, (x, y, z) in zip(of, held, points, strict=True)
            ]
    return columns_of(rows)


def _fedmr(strength):
    """FedMR with the loss of the paper, and with missing classes among the prototypes from which features are kept."""
    return FedMR(intra=strength, inter=strength, variant="paper_unit", negatives="all")


def _trained(federation, methods, seed):
    """Returns the server's accuracy after ten rounds, and features and labels of test examples under client 0's model.

    Gradients are clipped, as that of a correlation is unbounded where the features of a class hardly vary.
    """
    network = nn.MLP(CLASSES, hidden=(64,), projector="moon", projector_dim=3)
    training = LocalTraining(epochs=10, batch_size=32, learning_rate=0.01, momentum=0.9, clip_norm=1.0)
    result = simulate(
        federation, Model(network, federation.input_shape), FedAvg(training, methods), rounds=10, evaluate_every=10,
        key=jax.random.key(seed), measurements={"test": measurements.features},
    )  # fmt: skip
    features = result.measurements["test/local_features"][-1][0]
    return result.metrics[-1]["accuracy"], features, result.measurements["test/labels"][-1].tolist()


def _clouds(number, seed):
    """Gaussian clouds around orthogonal means, the same for all seeds."""
    labels = np.arange(number) % CLASSES
    means = 3 * np.linalg.qr(np.random.default_rng(0).normal(size=(INPUTS, INPUTS)))[0][:CLASSES]
    noise = np.random.default_rng(seed).normal(size=(number, INPUTS))
    return (means[labels] + noise).astype(np.float32), labels


def _say_discs(c: Columns) -> str:
    of_mean = c["classifier"] == "mean"
    lengths, turns, cosines = (c[name][of_mean] for name in ("length", "turn", "cosine"))
    before, after = (c["margin"][c["classifier"] == name].min() for name in ("all classes", "mean"))
    return (
        f"the mean of the clients turns the rows of classes 2 and 3 by {turns[1]:.1f} and {turns[2]:.1f} degrees "
        f"(cosine {cosines[1]:.3f}, length {lengths[1]:.3f}) and that of class 1 by {turns[0]:.1f} (length "
        f"{lengths[0]:.3f}); the smallest margin of a disc is {before:.3f} with all classes, {after:.3f} with the mean"
    )


def _say_sphere(c: Columns) -> str:
    def mean(name, arm):
        return c[name][c["arm"] == arm].mean()

    return "uniformity of features under a local model, accuracy of the server's: " + ", ".join(
        f"{mean('uniformity', arm):.2f}, {mean('accuracy', arm):.1%} ({arm})" for arm in dict.fromkeys(c["arm"])
    )


STUDIES = {
    "discs": Study(discs, theory_figures.discs, _say_discs),
    "sphere": Study(sphere, theory_figures.sphere, _say_sphere),
}
