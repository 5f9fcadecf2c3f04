"""A backdoor: malicious clients train images with a patch in a corner to be of a target class.

    a share of each batch:  the patch at the largest value,  y -> target

Gu et al., "BadNets" (2017), in federated learning Bagdasaryan et al., "How To Backdoor Federated Learning" (AISTATS
2020), whose scaling of the update (model replacement) is not part of it. The attack succeeds on a test image of another
class if the image with the patch is classed as the target: the measurement ``backdoor``.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.core.records import Batch, UserError
from fedjax_collapse.methods.base import RoundView, Setup
from fedjax_collapse.methods.robust._attacks import Attack
from fedjax_collapse.schema.options import Count, Natural, Share, option


class Backdoor(Attack):
    """Training on patched images.

    Args:
        target: class that the patch is to cause.
        poisoned: fraction of each batch, its first examples, that is patched, rounded up.
        size: width of the patch in pixels, a square at the end of both axes with the batch's largest value per channel.
    """

    needs = ("classes",)
    target: Natural = 0
    poisoned: Share = 0.5
    size: Count = option(2)

    def check_with(self, setup: Setup) -> None:
        shape = setup.model.input_shape
        if len(shape) != 3 or min(shape[:2]) < self.size:
            raise UserError(
                f"Backdoor: size {self.size}: inputs have the shape {shape}, expected images [height, "
                "width, channels] of at least this size"
            )
        classes = setup.model.initial_shapes().logits.shape[-1]
        if self.target >= classes:
            raise UserError(f"Backdoor: target {self.target}: expected a class, from 0 to {classes - 1}")

    def batch(self, batch: Batch, view: RoundView) -> Batch:
        count = jnp.ceil(self.poisoned * jnp.sum(batch.mask))
        chosen = self.is_own(view) & (jnp.cumsum(batch.mask) <= count)
        largest = jnp.max(batch.inputs, axis=(0, 1, 2), where=batch.mask[:, None, None, None], initial=0)
        inputs = jnp.where(chosen[:, None, None, None], self.patched(batch.inputs, largest), batch.inputs)
        return batch._replace(inputs=inputs, labels=jnp.where(chosen, self.target, batch.labels))

    def patched(self, images: jax.Array | np.ndarray, value: jax.Array | np.ndarray) -> jax.Array | np.ndarray:
        """Returns images [..., height, width, channels] with the patch, of a value or one per channel."""
        rows, columns = (np.arange(length) >= length - self.size for length in images.shape[-3:-1])
        module = np if isinstance(images, np.ndarray) else jnp
        return module.where((rows[:, None] & columns)[..., None], value, images)
