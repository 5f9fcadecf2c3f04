"""Label imbalance and dimensional collapse, numerically: what ``theory.py`` shows of FedDecorr.

Shi et al. (ICLR 2023; TPAMI 2023); the mathematics is in ``fedjax_collapse/analysis/dynamics.py``.
"""

import numpy as np

from experiments.research import theory_figures
from experiments.research.theory_records import Columns, Options, Study, columns_of
from fedjax_collapse.analysis import dynamics
from fedjax_collapse.analysis.rank import exp_entropy
from fedjax_collapse.analysis.spectrum import covariance_spectrum, effective_rank, eigenvalues
from fedjax_collapse.core.records import UserError

CLASSES, INPUTS, EXAMPLES, DEPTH = 10, 16, 200, 2  # of a client; its network is as wide as its inputs
FEW_OR_MANY = (1, 2, 5, 10)  # classes of a client
ALPHAS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
SCALES = (0.1, 0.3, 1.0)  # of random initial weights, relative to 1 / sqrt(inputs of the layer)
LEARNING_RATE, DESCENT = 0.1, 1000  # of gradient descent, and its steps
DECAYS = np.linspace(0, 3, 31)  # of the power law of a covariance
_END = 0.1  # time; of the mean loss, as gradient descent has it, EXAMPLES times that
_SHOWN = 50  # times at which a curve is recorded
_LOST = 1e-3  # the largest imbalance; exact integration conserves balancedness


def rates(options: Options) -> Columns:
    """Returns, for a small network that starts balanced and aligned, the rates of its singular values.

    For every k at some times: singular value of P, its rate exactly and by three formulas, and alignment.
    """
    rng = np.random.default_rng(4)
    labels = np.arange(30) % 3
    inputs = 2 * np.linalg.qr(rng.normal(size=(4, 4)))[0][labels] + 0.7 * rng.normal(size=(30, 4))
    values, of_head = np.array([0.6, 0.45, 0.3]), np.array([1.1, 0.8, 0.5])
    start = dynamics.balanced_network((4, 3, 3), values, of_head, 2, rng)
    offsets, rows = dynamics.head_offsets(start), []
    for time, network in _at_times(start, inputs, labels, 0.4, options.steps):
        gradient = dynamics.gradient_matrix(network, inputs, labels)
        of_means = dynamics.class_mean_gradient_matrix(network, inputs, labels)
        columns = {
            "sigma": np.linalg.svd(network.product, compute_uv=False),
            "exact": dynamics.singular_value_rates(network, inputs, labels),
            "balanced": dynamics.balanced_rates(network, gradient, 30),
            "theorem": dynamics.theorem_rates(network, gradient, 30, offsets),
            "theorem_of_class_means": dynamics.theorem_rates(network, of_means, 30, offsets),
            "alignment": dynamics.alignment(network),
        }
        rows += [{"time": time, "k": k + 1, **{name: c[k] for name, c in columns.items()}} for k in range(3)]
    return columns_of(rows)


def classes(options: Options) -> Columns:
    """Returns singular values and effective rank over time, for clients with different numbers of classes.

    The clients have equally many examples. The singular values are of P; the effective rank is of the features of data
    of all classes.
    """
    rows = []
    for number in FEW_OR_MANY:
        inputs, labels = _examples(np.arange(EXAMPLES) % number, seed=1)
        for time, network in _at_times(_client_network(), inputs, labels, _END, options.steps):
            rank = _rank_on_all_classes(network)
            values = np.linalg.svd(network.product, compute_uv=False)
            loss = dynamics.loss(network, inputs, labels) / EXAMPLES
            row = {"classes": number, "time": time, "loss": loss, "effective_rank": rank}
            rows += [{**row, "k": k + 1, "sigma": value} for k, value in enumerate(values)]
    return columns_of(rows)


def alignment(options: Options) -> Columns:
    """Returns alignment over gradient descent from random networks, for the client with all classes.

    For every k at some steps: singular value of P, and alignment.
    """
    inputs, labels = _examples(np.arange(EXAMPLES) % CLASSES, seed=1)
    rows = []
    for scale in SCALES:
        for seed in range(options.seeds):
            start = dynamics.random_network((INPUTS, INPUTS, CLASSES), scale, DEPTH, np.random.default_rng(seed))
            for step, network in enumerate(dynamics.descend(start, inputs, labels, LEARNING_RATE, DESCENT)):
                if step % (DESCENT // _SHOWN) == 0:
                    values, found = np.linalg.svd(network.product, compute_uv=False), dynamics.alignment(network)
                    row = {"scale": scale, "seed": seed, "step": step}
                    rows += [{**row, "k": k + 1, "sigma": values[k], "alignment": found[k]} for k in range(CLASSES)]
    return columns_of(rows)


def dirichlet(options: Options) -> Columns:
    """Returns effective ranks for clients whose class shares are drawn from a Dirichlet distribution with alpha.

    These are of the paper's G at the start, by its singular values, and of the features of data of all classes after
    training.
    """
    rows = []
    for alpha in ALPHAS:
        for seed in range(options.seeds):
            shares = np.random.default_rng(seed).dirichlet(np.full(CLASSES, alpha))
            labels = np.random.default_rng([seed, 1]).choice(CLASSES, EXAMPLES, p=shares)
            inputs, labels = _examples(labels, seed)
            start = _client_network()
            gradient = dynamics.class_mean_gradient_matrix(start, inputs, labels)
            *_, (_, trained) = _at_times(start, inputs, labels, _END, options.steps)
            rank_of_g = effective_rank(np.linalg.svd(gradient, compute_uv=False))
            row = {"alpha": alpha, "seed": seed, "classes": len(np.unique(labels))}
            row |= {"effective_classes": exp_entropy(shares), "rank_of_G": rank_of_g}
            rows.append({**row, "rank_at_start": _rank_on_all_classes(start), "rank": _rank_on_all_classes(trained)})
    return columns_of(rows)


def proposition(options: Options) -> Columns:
    """Returns both sides of the proposition for features whose covariance decays by a power law.

    For their correlation matrices K, these are ``sum (lambda - 1)^2`` and ``|K|_F^2 - d``; also FedDecorr's loss
    ``|K|_F^2 / d^2`` and the effective rank of K.
    """
    rng, rows = np.random.default_rng(0), []
    for decay in DECAYS:
        scales = np.arange(1, INPUTS + 1.0) ** (-decay / 2)
        features = rng.normal(size=(EXAMPLES, INPUTS)) * scales @ np.linalg.qr(rng.normal(size=(INPUTS, INPUTS)))[0]
        correlation = np.corrcoef(features.T)
        values, square = eigenvalues(correlation), np.sum(correlation**2)
        row = {"decay": decay, "deviations": np.sum((values - values.mean()) ** 2), "norm_minus_d": square - INPUTS}
        rows.append({**row, "feddecorr": square / INPUTS**2, "effective_rank": effective_rank(values)})
    return columns_of(rows)


def _client_network():
    """A balanced and aligned network, with small, different singular values, as random networks have."""
    shape, rng = (INPUTS, INPUTS, CLASSES), np.random.default_rng(2)
    values, of_head = np.linspace(0.35, 0.25, INPUTS), np.linspace(0.6, 0.4, CLASSES)
    return dynamics.balanced_network(shape, values, of_head, DEPTH, rng)


def _examples(labels, seed):
    """Gaussian clouds around orthogonal means, the same for all clients."""
    means = 2 * np.linalg.qr(np.random.default_rng(0).normal(size=(INPUTS, INPUTS)))[0][:CLASSES]
    noise = np.random.default_rng([seed, 2]).normal(size=(len(labels), INPUTS))
    return means[labels] + 0.5 * noise, labels


def _rank_on_all_classes(network):
    inputs, _ = _examples(np.arange(10 * EXAMPLES) % CLASSES, seed=3)
    return effective_rank(covariance_spectrum(inputs @ network.product.T))


def _at_times(network, inputs, labels, end, steps):
    """Yields time and network, at the start, at the end, and at some times between.

    Raises:
        UserError: the steps are too long, since the conserved balancedness is lost.
    """
    every = max(1, steps // _SHOWN)
    with np.errstate(over="ignore", invalid="ignore"):
        for step, after in enumerate(dynamics.integrate(network, inputs, labels, end, steps)):
            if not dynamics.imbalance(after) < _LOST:
                when = f"t = {end * step / steps:.2g}"
                raise UserError(f"--steps={steps}: too few, balancedness is lost at {when}; take more")
            if step % every == 0 or step == steps:
                yield end * step / steps, after


def _say_rates(c: Columns) -> str:
    first, last = c["time"] == 0, c["time"] == c["time"].max()

    def error(formula, where):
        return np.max(np.abs(c[formula] - c["exact"])[where]) / np.max(np.abs(c["exact"][where]))

    return (
        f"of the largest rate, theorem 1 is off by {error('theorem', first):.0e} at the start and "
        f"{error('theorem', last):.1%} at t = {c['time'].max():g} (alignment {c['alignment'][last].min():.2f}), "
        f"its balanced form there by {error('balanced', last):.0e}; "
        f"with G of class means by {error('theorem_of_class_means', first):.1%} at the start"
    )


def _say_classes(c: Columns) -> str:
    last = (c["time"] == c["time"].max()) & (c["k"] == 1)
    ranks = zip(c["classes"][last], c["effective_rank"][last], strict=True)
    return "effective rank of the features after training " + ", ".join(
        f"{rank:.2f} ({theory_figures.of_classes(n)})" for n, rank in ranks
    )


def _say_alignment(c: Columns) -> str:
    def mean(scale, step):  # the softmax does not see the last direction of the classes
        return c["alignment"][(c["scale"] == scale) & (c["step"] == step) & (c["k"] < CLASSES)].mean()

    return f"mean over k < {CLASSES} at the start and after {DESCENT} steps: " + ", ".join(
        f"{mean(scale, 0):.2f} and {mean(scale, DESCENT):.2f} (initial scale {scale:g})" for scale in SCALES
    )


def _say_dirichlet(c: Columns) -> str:
    means = [(a, *(c[name][c["alpha"] == a].mean() for name in ("rank_of_G", "rank"))) for a in (ALPHAS[0], ALPHAS[-1])]
    return "; ".join(f"alpha {a:g}: effective rank of G {g:.2f}, of the features {r:.2f}" for a, g, r in means)


def _say_proposition(c: Columns) -> str:
    apart = np.max(np.abs(c["deviations"] - c["norm_minus_d"]) / c["norm_minus_d"])
    return f"both sides differ by at most {apart:.0e} of themselves"


STUDIES = {
    "rates": Study(rates, theory_figures.rates, _say_rates),
    "classes": Study(classes, theory_figures.classes, _say_classes),
    "alignment": Study(alignment, theory_figures.alignment, _say_alignment),
    "dirichlet": Study(dirichlet, theory_figures.dirichlet, _say_dirichlet),
    "proposition": Study(proposition, theory_figures.proposition, _say_proposition),
}
