"""Federated averaging with differential privacy of clients: clipped uploads, equal weights, noise once on their sum.

    w <- w + (sum_k u_k min(1, C / ||u_k||) + N(0, (z C)^2 I)) / m,   m: the expected number of clients in a round

McMahan et al., "Learning Differentially Private Recurrent Language Models" (2018): the whole upload is clipped, and the
denominator does not depend on the cohort. With ``quantile`` the clip follows a quantile of the norms (Andrew et al.,
"Differentially Private Learning with Adaptive Clipping", 2021), from one more bit of each client:

    b = (sum_k ([||u_k|| <= C] - 1/2) + N(0, s^2)) / m + 1/2
    C <- C exp(-clip_rate (b - quantile));   z <- (z^-2 - (2 s)^-2)^-1/2

so that both releases together are as private as the sum alone with noise z. The bits are centred, as in the paper:
adding or removing a client changes their sum by 1/2, replacing one by 1, as for the uploads. (A sum of bits 0 or 1
would change by 1 in both cases, and spend more than the formula for adding or removing.) A round's noise belongs to the
clip C of the round.

With ``noise_cohort_size`` M, a cohort of m clients stands for one of M: the noise on the mean is that of M clients, z C
/ M, as in pfl-research. The epsilon of such a run is that of a federation that was not trained, which tables state.

With ``bands`` b the noise is correlated (banded matrix factorisation; Choquette-Choo et al., "(Amplified) Banded Matrix
Factorization", 2023): ``n_t = (xi_t - sum_(0<j<b) c_j n_(t-j)) / c_0`` in the place of xi_t, so that the noise of later
rounds cancels part of the earlier. c are the first b coefficients of 1 / sqrt(1 - x), of norm 1. The sampler's groups
ensure that a client takes part in at most one of b successive rounds.

Flower's ``DifferentialPrivacyServerSideAdaptiveClipping`` replaces the bit by "was clipped", so that C diverges from
the quantile, and adds the noise of equal weights to a mean weighted by examples.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import Outputs, PyTree, UserError, Variables
from fedjax_collapse.losses.norms import root
from fedjax_collapse.methods.base import FinishView, Method, Noise, NoiseView
from fedjax_collapse.schema.options import Count, Fraction, NonNegative, Positive, check_fields, only_with, option

_BIT_NOISE = 1 / 20  # of the number of clients that the noise is for (Andrew et al.)


class DPFedAvg(Method):
    """Clipping of every client's upload, and Gaussian noise on the sum.

    Args:
        clip: largest norm C of an upload, in the units of the params; with ``quantile``, in the first round.
        noise_multiplier: z, the standard deviation of the noise on the sum divided by the clip; in a config computed
            from ``privacy.epsilon``, if given.
        noise_cohort_size: number M of clients that the noise is for: ``z C / M`` on the mean; None is the run's m.
        quantile: quantile gamma of the norms that the clip follows; None fixes the clip.
        clip_rate: rate eta at which the clip follows.
        bit_noise: standard deviation s of the bits' noise; None is a twentieth of the number of clients that the noise
            is for.
        bands: number of rounds over which the noise is correlated. A client may take part in one of them: with
            ``bands=50`` set ``cohort.sampler=dict(name="poisson", groups=50)``. The server stores ``bands - 1`` models.
    """

    clip: Positive = 1.0
    noise_multiplier: NonNegative = 1.0
    noise_cohort_size: Count | None = None
    quantile: Fraction | None = None
    clip_rate: Positive = only_with(0.2, quantile=...)
    bit_noise: Positive | None = only_with(None, quantile=...)
    bands: Count = option(1)

    weighting = "expected"

    def check(self) -> None:
        check_fields(self)
        if self.quantile is not None and self.bands > 1:
            raise UserError("DPFedAvg: bands with quantile: correlated noise needs a fixed clip, expected one of them")

    def noise(self, expected: float) -> Noise:
        z, cohort = float(self.noise_multiplier), float(self._noisy(expected))
        if self.quantile is not None and z >= 2 * (bits := float(self._bit_noise(cohort))):
            raise UserError(
                f"DPFedAvg: noise_multiplier {z:g} with quantile: expected less than twice the noise on the number of "
                f"clients within the clip, {bits:g}; set a larger bit_noise"
            )
        return Noise(z, cohort, self.bands)

    @property
    def not_sent(self) -> tuple[str, ...]:
        return ("shared/*",) if self.bands > 1 else ()

    def init_shared(self, variables: Variables, shapes: Outputs) -> PyTree:
        if self.bands > 1:  # the noise of the last rounds, the latest first
            return {
                path: jnp.zeros((self.bands - 1, *leaf.shape), leaf.dtype)
                for path, leaf in masks.by_path(variables.params).items()
            }
        return () if self.quantile is None else jnp.asarray(self.clip, jnp.result_type(float))

    def init_memory(self, variables: Variables, shapes: Outputs) -> PyTree:
        return () if self.quantile is None else jnp.zeros(())  # the centred bit, from ``upload`` to ``finish``

    def upload(self, update: PyTree, view: FinishView) -> tuple[PyTree, PyTree]:
        """An upload that is not finite counts as 0; skipping the client would reveal it to others."""
        squared, clip = optax.tree.norm(update, squared=True), self._clip(view.shared)
        norm, is_finite = root(squared), jnp.isfinite(squared)  # the root of NaN is 0
        scale = jnp.minimum(1, clip / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))
        sent = jax.tree.map(lambda leaf: jnp.where(is_finite, scale * leaf, 0).astype(leaf.dtype), update)
        if self.quantile is None:
            return sent, view.memory
        return sent, (is_finite & (norm <= clip)).astype(view.memory.dtype) - 0.5

    def finish(self, view: FinishView) -> tuple[PyTree, PyTree]:
        return view.memory, view.memory  # the bit, if any

    def perturb(self, update: PyTree, view: NoiseView) -> tuple[PyTree, PyTree]:
        clip, noisy = self._clip(view.shared), self._noisy(view.expected)
        key_sum, key_bits = jax.random.split(view.key)
        normal, shared = optax.tree.random_like(key_sum, update), view.shared
        if self.bands > 1:
            noise, shared = self._correlated(masks.by_path(normal), shared)
            normal = masks.replace(normal, noise)
        deviation = self._of_sum(noisy) * clip / noisy
        update = jax.tree.map(lambda leaf, noise: (leaf + deviation * noise).astype(leaf.dtype), update, normal)
        if self.quantile is None:
            return update, shared
        bit_noise = self._bit_noise(noisy) / noisy * jax.random.normal(key_bits, (), clip.dtype)
        within = view.report / view.expected + 0.5 + bit_noise
        return update, (clip * jnp.exp(-self.clip_rate * (within - self.quantile))).astype(clip.dtype)

    def _correlated(self, normal, past):
        """Returns the round's noise and that of the last rounds, from independent numbers, by path."""
        first, *others = coefficients(self.bands)
        noise = {
            path: (new - jnp.tensordot(jnp.asarray(others, new.dtype), past[path], 1)) / first
            for path, new in normal.items()
        }
        kept = {path: jnp.concatenate([new[None], past[path][:-1]]) for path, new in noise.items()}
        return noise, {**past, **kept}

    def _clip(self, shared):
        """Returns the clip of the round."""
        return self.clip if self.quantile is None else shared

    def _noisy(self, expected):
        """Returns the number of clients that the noise is for."""
        return expected if self.noise_cohort_size is None else self.noise_cohort_size

    def _bit_noise(self, noisy):
        return _BIT_NOISE * noisy if self.bit_noise is None else self.bit_noise

    def _of_sum(self, noisy):
        """Returns the noise multiplier of the sum, after the share of the bits."""
        return self.noise_multiplier if self.quantile is None else of_sum(self.noise_multiplier, self._bit_noise(noisy))


def coefficients(bands: int) -> np.ndarray:
    """Returns the first coefficients [bands] of 1 / sqrt(1 - x), divided by their norm."""
    found = np.cumprod([1.0, *((2 * j - 1) / (2 * j) for j in range(1, bands))])
    return found / np.linalg.norm(found)


def of_sum(noise_multiplier: jax.Array | float, bit_noise: jax.Array | float) -> jax.Array:
    """Returns the noise multiplier of the sum with which sum and bits together have ``noise_multiplier``.

    ``(z^-2 - (2 s)^-2)^-1/2``, which needs ``z < 2 s``; 0 without noise.
    """
    z = jnp.asarray(noise_multiplier, jnp.result_type(float))
    return z / jnp.sqrt(1 - (z / (2 * bit_noise)) ** 2)
