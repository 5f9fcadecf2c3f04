"""FLoRA: stack the clients' adapters, merge the stack into the frozen weights, and restart the adapters.

    W_0 <- W_0 + [s_1 B_1, ..., s_K B_K] [p_1 A_1; ...; p_K A_K] = W_0 + sum_k p_k s_k B_k A_k

which is exact for any ranks, and of a rank up to their sum. In each round a client starts from a random A and B = 0.
Wang et al., "FLoRA: Federated Fine-Tuning Large Language Models with Heterogeneous Low-Rank Adaptations" (NeurIPS
2024). The released code sends the stack to all clients, which merge it; here the server merges it. The code gives
clients of different ranks the same scale. Each client draws its own A.

For each layer with adapters a client sends r (d_in + d_out) numbers and receives d_in d_out new weights, in the
released code the stack of all clients, (r_1 + ... + r_K) (d_in + d_out). It receives no A or B of the server.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import PyTree, Variables
from fedjax_collapse.methods.adapters._low_rank import Ranked
from fedjax_collapse.methods.base import ClientView
from fedjax_collapse.nn.adapters import Adapter, adapters, added_to_kernels, with_adapters


class FLoRA(Ranked):
    """The mean product, added to the base."""

    moved = "adapted"
    replaces_adapters = True
    not_sent = (*Ranked.not_sent, "down/params/*/lora_?")
    unused = ()

    def receive(self, view: ClientView) -> tuple[Variables, PyTree]:
        variables, memory = super().receive(view)
        received, draw = adapters(variables.params), view.model.adapters.initial_a
        keys = jax.random.split(view.key, len(received))
        new = {
            layer: Adapter(draw(len(a))(key, a.shape, a.dtype), jnp.zeros_like(b), scale)
            for key, (layer, (a, b, scale)) in zip(keys, received.items(), strict=True)
        }
        return variables._replace(params=with_adapters(variables.params, new)), memory

    def aggregate(self, update: PyTree, shared: PyTree, report: PyTree) -> PyTree:
        unchanged = jax.tree.map(jnp.zeros_like, adapters(update))
        return added_to_kernels(with_adapters(update, unchanged), report)
