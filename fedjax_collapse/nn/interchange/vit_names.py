"""How other libraries name the arrays of a vision transformer."""

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

_TORCH = {"kernel": "weight", "scale": "weight", "bias": "bias"}
_FLAX = {"kernel": "kernel", "scale": "scale", "bias": "bias"}
_TO_TORCH = {1: (0,), 2: (1, 0), 4: (3, 2, 0, 1)}  # axes of ours by their number


class Naming(NamedTuple):
    """The names of a library's arrays: of a layer, and after it that of an array of the layer.

    Weights in PyTorch are [out, in], and [out, in, height, width] those of patches. In Flax they are as ours, but have
    an axis for the heads of the attention.
    """

    whose: str
    top: Mapping[str, str]  # by our layers outside of the blocks
    block: str  # the beginning of all names in block {}
    layers: Mapping[str, str]  # by our layers of a block, in the order in which one array has several of them
    leaves: Mapping[str, str]  # by our arrays of a layer
    epsilon: float
    gelu: str
    interpolation: str
    prefixes: tuple[str, ...] = ()  # which may be before all names
    ignored: tuple[str, ...] = ()  # beginnings of names that neither features nor logits depend on
    synonyms: tuple[tuple[str, str], ...] = ()  # patterns in the names of other versions, and what they are here

    @property
    def marker(self) -> str:
        """The name that shows whose names they are."""
        return self.top["patches"] + self.leaves["kernel"]

    def canonical(self, name: str) -> str:
        """Returns the name of this version for that of another one."""
        for pattern, replacement in self.synonyms:
            name = re.sub(pattern, replacement, name)
        return name

    def name(self, path: str, head: str | None) -> str | None:
        """Returns the name of an array of our network; None for one that the library's lacks.

        ``head`` is the layer of the classifier, if it is linear.
        """
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
        """Returns the place of a block's layer among ``layers``; -1 for those outside of blocks."""
        *_, layer, _ = path.split("/")
        return list(self.layers).index(layer) if layer in self.layers else -1

    def shape(self, path: str, ours: tuple[int, ...], heads: int) -> tuple[int, ...]:
        """Returns the shape of the library's array for that of ours."""
        *_, layer, leaf = path.split("/")
        if leaf in ("token", "positions"):
            return (1,) * (3 - len(ours)) + ours
        if self.leaves is _TORCH:
            return tuple(ours[axis] for axis in _TO_TORCH[len(ours)])
        if layer in ("query", "key", "value"):
            return (*ours[:-1], heads, ours[-1] // heads)
        return (heads, ours[0] // heads, *ours[1:]) if (layer, leaf) == ("out", "kernel") else ours

    def converted(self, array: np.ndarray, ours: tuple[int, ...]) -> np.ndarray:
        """Returns the library's array as ours of the given shape."""
        if self.leaves is _TORCH and len(ours) == array.ndim:
            array = array.transpose(np.argsort(_TO_TORCH[len(ours)]))
        return array.reshape(ours)


NAMINGS = (
    Naming(
        "timm",
        dict(token="cls_token", positions="pos_embed", patches="patch_embed.proj.", norm="norm.", head="head."),
        "blocks.{}.",
        dict(
            norm_1="norm1.",
            **dict.fromkeys(("query", "key", "value"), "attn.qkv."),
            out="attn.proj.",
            norm_2="norm2.",
            mlp_1="mlp.fc1.",
            mlp_2="mlp.fc2.",
        ),
        _TORCH,
        epsilon=1e-6,
        gelu="erf",
        interpolation="cubic_antialias",
    ),
    Naming(
        "Hugging Face",
        dict(
            token="embeddings.cls_token",
            positions="embeddings.position_embeddings",
            patches="embeddings.patch_embeddings.projection.",
            norm="layernorm.",
            head="classifier.",
        ),
        "encoder.layer.{}.",
        dict(
            norm_1="layernorm_before.",
            **{name: f"attention.attention.{name}." for name in ("query", "key", "value")},
            out="attention.output.dense.",
            norm_2="layernorm_after.",
            mlp_1="intermediate.dense.",
            mlp_2="output.dense.",
        ),
        _TORCH,
        epsilon=1e-12,
        gelu="erf",
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
        dict(
            token="class_token",
            positions="encoder.pos_embedding",
            patches="conv_proj.",
            norm="encoder.ln.",
            head="heads.head.",
        ),
        "encoder.layers.encoder_layer_{}.",
        dict(
            norm_1="ln_1.",
            **dict.fromkeys(("query", "key", "value"), "self_attention.in_proj_"),
            out="self_attention.out_proj.",
            norm_2="ln_2.",
            mlp_1="mlp.0.",
            mlp_2="mlp.3.",
        ),
        _TORCH,
        epsilon=1e-6,
        gelu="erf",
        interpolation="cubic_antialias",
        synonyms=((r"mlp\.linear_1\.", "mlp.0."), (r"mlp\.linear_2\.", "mlp.3.")),
    ),
    Naming(
        "the JAX codes",
        dict(
            token="cls",
            positions="Transformer/posembed_input/pos_embedding",
            patches="embedding/",
            norm="Transformer/encoder_norm/",
            head="head/",
        ),
        "Transformer/encoderblock_{}/",
        dict(
            norm_1="LayerNorm_0/",
            **{name: f"MultiHeadDotProductAttention_1/{name}/" for name in ("query", "key", "value", "out")},
            norm_2="LayerNorm_2/",
            mlp_1="MlpBlock_3/Dense_0/",
            mlp_2="MlpBlock_3/Dense_1/",
        ),
        _FLAX,
        epsilon=1e-6,
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
