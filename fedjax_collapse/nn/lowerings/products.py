"""Products of rows with a matrix, with gradients that are fast on CPUs.

A CPU's product with a transposed matrix repacks it every time: with 32 rows it took 2 to 5 times as long as the product
of the matrix with the transposed rows, with 512 rows as long or less. The transpose of a frozen matrix is computed
once, before the loop of steps. The gradient of a matrix is a product of rows. Over two axes, such as examples and
tokens, XLA fuses it, in transposed order, with the elementwise operations before it, which took longer than the product
(docs/adapters.md).
"""

import jax

from fedjax_collapse.core.target import Target

_FEW_ROWS, _LARGE = 128, 2**14  # most rows whose transposes take less time than packing a matrix, of at least this size


def multiply(inputs: jax.Array, kernel: jax.Array, target: Target | None) -> jax.Array:
    """Returns ``inputs @ kernel``, [..., in] and [in, out] -> [..., out]. Without a target, the gradient is JAX's."""
    if target is None or not target.is_cpu:
        return inputs @ kernel
    rows = inputs.reshape(-1, inputs.shape[-1])
    return _multiply(rows, kernel).reshape(*inputs.shape[:-1], -1)


def of_columns(rows: jax.Array, gradients: jax.Array, target: Target) -> jax.Array:
    """Returns ``rows.T @ gradients``, [n, in] and [n, out] -> [in, out], which is the gradient of a matrix."""
    inputs, outputs = rows.shape[1], gradients.shape[1]
    if target.is_cpu and outputs < inputs and outputs <= len(rows):
        # without the barrier, the compiler makes it the other product, which then takes up to twice as long
        return jax.lax.optimization_barrier(gradients.T @ rows).T
    return rows.T @ gradients


def of_rows(gradients: jax.Array, kernel: jax.Array, target: Target) -> jax.Array:
    """Returns ``gradients @ kernel.T``, [n, out] and [in, out] -> [n, in], which is the gradient of rows."""
    if target.is_cpu and len(gradients) <= _FEW_ROWS and kernel.size >= _LARGE:
        # without the barrier, the compiler makes it the other product again
        return jax.lax.optimization_barrier(kernel @ gradients.T).T
    # without a transpose, which would change what XLA fuses, and so the rounding
    return jax.lax.dot_general(gradients, kernel, (((1,), (1,)), ((), ())))


@jax.custom_vjp
def _multiply(inputs, kernel):
    return inputs @ kernel


def _forward(inputs, kernel):
    """Returns the product, and residuals of the gradient: inputs and kernel, or the transpose of a frozen kernel."""
    outputs = inputs.value @ kernel.value
    if kernel.perturbed:
        return outputs, ((inputs.value, kernel.value), None)
    # without the barrier, the compiler makes the transpose a part of the product again, and leaves it in the loop
    return outputs, (None, jax.lax.optimization_barrier(kernel.value.T))


def _backward(kept, gradient):
    trained, transposed = kept
    if trained is None:
        return gradient @ transposed, None
    inputs, kernel = trained
    return of_rows(gradient, kernel, Target()), of_columns(inputs, gradient, Target())


_multiply.defvjp(_forward, _backward, symbolic_zeros=True)
