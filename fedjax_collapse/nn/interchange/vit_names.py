"""How other libraries name the arrays of a network, above all of a vision transformer."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from fedjax_collapse.nn.interchange.torch_weights import FROM_TORCH, TO_TORCH

_TOP = "token", "positions", "patches", "norm", "head"  # our layers outside of the blocks
_LAYERS = "norm_1", "query", "key", "value", "out", "norm_2", "mlp_1", "mlp_2"  # of a block
_TORCH = {"kernel": "weight", "scale": "weight", "bias": "bias"}
_FLAX = {"kernel": "kernel", "scale": "scale", "bias": "bias"}


class Naming(NamedTuple):
    """The names of a library's arrays: the name of a layer, then of an array in the layer.

    PyTorch's weights are [out, in], for patches [out, in, height, width]. Flax's weights are as ours, but have an axis
    for the attention heads.
    """

    whose: str
    top: Mapping[str, str]  # by ``_TOP``
    block: str = ""  # the beginning of all names in block {}
    layers: Mapping[str, str] = MappingProxyType({})  # by ``_LAYERS``, in the order in which one array has several
    leaves: Mapping[str, str] = _TORCH  # by our arrays of a layer
    epsilon: float = 1e-6
    gelu: str = "erf"
    interpolation: str = "cubic_antialias"
    prefixes: tuple[str, ...] = ()  # which may be before all names
    ignored: tuple[str, ...] = ()  # beginnings of names that neither features nor logits depend on
    synonyms: tuple[tuple[str, str], ...] = ()  # patterns in the names of other versions, and what they are here
    names: Mapping[str, str] | None = None  # of another network, by path: instead of the above
    has_projector: bool = False

    @property
    def marker(self) -> str:
        """The name that identifies the library."""
        return self.top["patches"] + self.leaves["kernel"]

    def canonical(self, name: str) -> str:
        """Returns the name in this version of the library, given the name in another version."""
        for pattern, replacement in self.synonyms:
            name = re.sub(pattern, replacement, name)
        return name

    def name(self, path: str, head: str | None) -> str | None:
        """Returns the library's name of an array of our network; None if its network lacks the array.

        ``head``: the layer of the classifier, if it is linear.
        """
        if self.names is not None:
            name = self.names.get(path)
            is_head = name is not None and name.startswith(self.top["head"])
            return None if is_head and path.rpartition("/")[0] != head else name
        match path.split("/"):
            case [("token" | "positions") as leaf]:
                return self.top[leaf]
            case [("patches" | "norm") as layer, leaf]:
                return self.top[layer] + self.leaves[leaf]
            case [layer, leaf] if layer == head:
                return self.top["head"] + self.leaves[leaf]
            case [block, layer, leaf] if layer in self.layers and leaf in self.leaves:
                return self.block.format(block.removeprefix("block_")) + self.layers[layer] + self.leaves[leaf]
        return None

    def place(self, path: str) -> int:
        """Returns the index of a block's layer in ``layers``; -1 outside of blocks."""
        *_, layer, _ = path.split("/")
        return list(self.layers).index(layer) if layer in self.layers else -1

    def shape(self, path: str, ours: tuple[int, ...], heads: int) -> tuple[int, ...]:
        """Returns the shape of the library's array, given the shape of ours."""
        *_, layer, leaf = path.split("/")
        if self.names is None and leaf in ("token", "positions"):
            return (1,) * (3 - len(ours)) + ours
        if self.leaves is _TORCH:
            return tuple(ours[axis] for axis in TO_TORCH[len(ours)])
        if layer in ("query", "key", "value"):
            return (*ours[:-1], heads, ours[-1] // heads)
        return (heads, ours[0] // heads, *ours[1:]) if (layer, leaf) == ("out", "kernel") else ours

    def converted(self, array: np.ndarray, ours: tuple[int, ...]) -> np.ndarray:
        """Returns the library's array in our shape."""
        if self.leaves is _TORCH and len(ours) == array.ndim:
            array = array.transpose(FROM_TORCH[array.ndim])
        return array.reshape(ours)


def _of_layers(norms, attention, out, mlp):
    """Returns the names of a block's layers; ``attention`` names the layers of queries, keys and values."""
    of_attention = [attention.format(name) for name in ("query", "key", "value")]
    names = norms[0], *of_attention, out, norms[1], *mlp
    return dict(zip(_LAYERS, names, strict=True))


def _of_top(*names):
    return dict(zip(_TOP, names, strict=True))


NAMINGS = (
    Naming(
        "timm",
        _of_top("cls_token", "pos_embed", "patch_embed.proj.", "norm.", "head."),
        "blocks.{}.",
        _of_layers(("norm1.", "norm2."), "attn.qkv.", "attn.proj.", ("mlp.fc1.", "mlp.fc2.")),
    ),
    Naming(
        "Hugging Face",
        _of_top(
            *("embeddings.cls_token", "embeddings.position_embeddings", "embeddings.patch_embeddings.projection."),
            *("layernorm.", "classifier."),
        ),
        "encoder.layer.{}.",
        _of_layers(
            ("layernorm_before.", "layernorm_after."),
            *("attention.attention.{}.", "attention.output.dense."),
            ("intermediate.dense.", "output.dense."),
        ),
        epsilon=1e-12,
        interpolation="cubic",
        prefixes=("vit.",),
        ignored=("pooler.",),
        synonyms=(
            (r"^(encoder\.)?layers?\.", "encoder.layer."),
            *((rf"attention\.{name[0]}_proj\.", f"attention.attention.{name}.") for name in ("query", "key", "value")),
            (r"attention\.o_proj\.", "attention.output.dense."),
            (r"mlp\.fc1\.", "intermediate.dense."),
            (r"mlp\.fc2\.", "output.dense."),
        ),
    ),
    Naming(
        "torchvision",
        _of_top("class_token", "encoder.pos_embedding", "conv_proj.", "encoder.ln.", "heads.head."),
        "encoder.layers.encoder_layer_{}.",
        _of_layers(("ln_1.", "ln_2."), "self_attention.in_proj_", "self_attention.out_proj.", ("mlp.0.", "mlp.3.")),
        interpolation="cubic_corners",
        synonyms=((r"mlp\.linear_1\.", "mlp.0."), (r"mlp\.linear_2\.", "mlp.3.")),
    ),
    Naming(
        "the JAX codes",
        _of_top(
            *("cls", "Transformer/posembed_input/pos_embedding", "embedding/", "Transformer/encoder_norm/", "head/"),
        ),
        "Transformer/encoderblock_{}/",
        _of_layers(
            ("LayerNorm_0/", "LayerNorm_2/"),
            *("MultiHeadDotProductAttention_1/{}/", "MultiHeadDotProductAttention_1/out/"),
            ("MlpBlock_3/Dense_0/", "MlpBlock_3/Dense_1/"),
        ),
        _FLAX,
        gelu="tanh",
        interpolation="corners",
        prefixes=("opt/target/", "params/"),
        ignored=("pre_logits/",),
        synonyms=(
            (r"^(Transformer/)?(posembed_input/)?pos_embedding$", "Transformer/posembed_input/pos_embedding"),
            (r"(?<=\d/)LayerNorm_1/", "LayerNorm_2/"),
            (r"(?<=\d/)MultiHeadDotProductAttention_0/", "MultiHeadDotProductAttention_1/"),
            (r"(?<=\d/)MlpBlock_0/", "MlpBlock_3/"),
        ),
    ),
)
