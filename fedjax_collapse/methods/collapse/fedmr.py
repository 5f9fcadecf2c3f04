"""FedMR: reshape the manifold of local features where a client lacks whole classes.

    loss = cross-entropy + intra * intra_class_correlation(features) + inter * prototype_margin(features, prototypes)

The first term spreads the features within each class; the second pushes them to the prototype of their class and away
from other prototypes. Fan et al., "Federated Learning with Partially Class-Disjoint Data via Manifold Reshaping" (TMLR
2023). Prototypes are the mean features of each class over the data of the reporting clients, from their trained models.
Until there are prototypes the second term is 0, unless ``initial_prototypes`` starts from those of the initial model.

The released code has only the first term, on a scale unlike the paper's formula: ``variant="official"``. It is the
default because the only published value of ``intra`` known to us, 1e-5 in the code's README, belongs to it. The second
term and the prototypes follow the paper; 0.1 for ``inter`` is our choice. Where the paper is not explicit there is an
option or our choice: the mode in which prototypes are computed; Lite draws new rows in each batch; clients that do not
submit prototypes still receive them.
"""

from typing import Annotated

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import Outputs, PyTree, Variables
from fedjax_collapse.losses import intra_class_correlation, prototype_distance, prototype_margin
from fedjax_collapse.losses.classwise import VARIANTS
from fedjax_collapse.methods._prototypes import (
    MODES,
    Prototypes,
    WithPrototypes,
    local_class_sums,
    no_prototypes,
    one_hot,
)
from fedjax_collapse.methods.base import FinishView, LocalView, Regularizer, Term
from fedjax_collapse.schema.options import Fraction, Interval, Natural, NonNegative, option


class FedMR(WithPrototypes, Regularizer):
    """Decorrelation within each class of the batch, and distance to class prototypes.

    Args:
        intra: strength mu_1 of the first term.
        inter: strength mu_2 of the second term; our choice.
        variant: scale of the first term: of the released code (``official``), the paper's formula (``paper``), or exact
            correlations (``paper_unit``), without the factor ``m_c^2 / (m_c - 1)^2``, as lemma 1 assumes.
        normalise_d2: whether to divide the paper's variants by the squared number of features.
        min_count: fewest rows of a class in a batch that the first term counts.
        eps: added to the variance of each feature within a class; not in the paper.
        negatives: other prototypes that a row is compared with: of the client's classes (``local``, eq. 4) or of all
            (``all``, the paper's text).
        margin: False drops the comparison with other prototypes.
        lite: random rows of a batch in the second term (published: 10 and 50); 0 for all.
        submission: fraction of clients that submit prototypes, drawn once by client id.
        submission_seed: seed of this draw.
        prototypes: class means (``mean``), or the c-th unit vector for class c (``one_hot``, the authors' ablation).
        prototype_mode: whether BatchNorm uses running (``eval``) or batch statistics (``train``) for prototypes.
        initial_prototypes: whether to start from the initial model's means; otherwise the second term is 0 without
            prototypes.
    """

    strengths = ("intra", "inter")
    intra: NonNegative = 1e-5
    inter: NonNegative = 0.1
    variant: str = option("official", choices=VARIANTS)
    normalise_d2: bool = option(False)
    min_count: Annotated[int, Interval(2)] = option(2)
    eps: NonNegative = 1e-8
    negatives: str = option("local", choices=("local", "all"))
    margin: bool = option(True)
    lite: Natural = option(0)
    submission: Fraction = 1.0
    submission_seed: int = 0
    prototypes: str = option("mean", choices=("mean", "one_hot"))
    prototype_mode: str = option("eval", choices=MODES)
    initial_prototypes: bool = option(False)

    when_measured = "start"

    @property
    def unused(self) -> tuple[str, ...]:
        if self.prototypes == "one_hot":
            return "finish", "combine", "measure", "after_round"
        return () if self.initial_prototypes else ("measure", "after_round")

    @property
    def not_sent(self) -> tuple[str, ...]:
        return ("shared/*",) if self.prototypes == "one_hot" else ()

    def init_shared(self, variables: Variables, shapes: Outputs) -> Prototypes:
        return one_hot(shapes) if self.prototypes == "one_hot" else no_prototypes(shapes)

    def penalty(self, view: LocalView) -> dict[str, Term]:
        rows = (view.outputs.features, view.batch.labels, view.batch.mask)
        intra = intra_class_correlation(*rows, self.variant, self.normalise_d2, self.min_count, self.eps)
        selected = draw_rows(view.key, view.batch.mask, self.lite) if self.lite else None
        if self.margin:
            negatives = jnp.ones_like(view.shared.valid) if self.negatives == "all" else view.class_counts > 0
            inter = prototype_margin(*rows, *view.shared, negatives, selected)
        else:
            inter = prototype_distance(*rows, *view.shared, selected)
        return {"intra": Term(self.intra, intra), "inter": Term(self.inter, inter)}

    def finish(self, view: FinishView) -> tuple[PyTree, PyTree]:
        report = local_class_sums(view, len(view.shared.valid), self.prototype_mode)
        submits = is_submitter(view.client.id, self.submission, self.submission_seed)
        return view.memory, jax.tree.map(lambda leaf: jnp.where(submits, leaf, 0), report)

    def measure(self, view: FinishView) -> PyTree:
        return self.finish(view)[1]

    def after_round(self, shared: Prototypes, before: Variables, after: Variables, measured: PyTree) -> Prototypes:
        return self.combine(shared, measured)


def draw_rows(key: jax.Array, mask: jax.Array, count: int) -> jax.Array:
    """Returns a mask of ``count`` random true rows; if there are fewer, of all, and of some rows with mask False."""
    order = jnp.argsort(jnp.where(mask, jax.random.uniform(key, mask.shape), jnp.inf))
    return jnp.zeros_like(mask).at[order[:count]].set(True)


def is_submitter(client: jax.Array, fraction: jax.Array | float, seed: jax.Array | int) -> jax.Array:
    """Returns whether a client submits prototypes: a random choice in each ten consecutive ids, exact for tenths."""
    key = jax.random.fold_in(jax.random.key(seed), client // 10)
    return jax.random.permutation(key, 10)[client % 10] + 0.5 < 10 * fraction
