"""Initial weights from files: a small ViT of PyTorch's own layers, written by the names of each library."""

import functools
import json
import warnings

import jax
import ml_dtypes
import numpy as np
import pytest
import scipy.ndimage
import torch
from conftest import assert_close, cases, check
from safetensors.numpy import save_file
from tiny_networks import compiled
from torch.nn.functional import interpolate

from fedjax_collapse import Model, load_pretrained, nn, save_weights
from fedjax_collapse.core import masks
from fedjax_collapse.core.records import Variables
from fedjax_collapse.nn.heads import orthogonal_head
from fedjax_collapse.nn.interchange.pretrained import fit_positions, interpolation_matrix
from fedjax_collapse.schema.describe import describe

WIDTH, HEADS, HIDDEN, CLASSES = 8, 2, 12, 3
OPTIONS = dict(size="micro", patch=2, width=WIDTH, depth=2, heads=HEADS, mlp_width=HIDDEN)


class Reference(torch.nn.Module):
    """Images of 4x6 pixels, whose patches are 2x3."""

    def __init__(self, epsilon=1e-6, approximate="none"):
        super().__init__()
        self.patches = torch.nn.Conv2d(3, WIDTH, 2, 2)
        self.token, self.positions = (torch.nn.Parameter(torch.zeros(1, n, WIDTH)) for n in (1, 7))
        activation = functools.partial(torch.nn.functional.gelu, approximate=approximate)
        options = dict(dropout=0.0, activation=activation, layer_norm_eps=epsilon, batch_first=True, norm_first=True)
        block = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, **options)
        norm = torch.nn.LayerNorm(WIDTH, epsilon)
        self.blocks = torch.nn.TransformerEncoder(block, 2, norm, enable_nested_tensor=False)
        self.head = torch.nn.Linear(WIDTH, CLASSES)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.double().parameters():
                parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))

    def forward(self, images):
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(images), 1, -1), tokens], 1) + self.positions
        return self.head(self.blocks(tokens)[:, 0])


REFERENCE = {name: tensor.numpy() for name, tensor in Reference().state_dict().items()}


def renamed(names, arrays=REFERENCE):
    """The arrays by other names, of which a name is the first that is part of it."""
    found = {}
    for name, array in arrays.items():
        for part, other in names.items():
            name = name.replace(part, other)
        found[name] = array
    return found


def hugging_face(version=4, prefix="vit."):
    five = version == 5
    block = "layers." if five else "encoder.layer."
    mlp = ("mlp.fc1", "mlp.fc2") if five else ("intermediate.dense", "output.dense")
    names = {"blocks.norm": "layernorm", "blocks.layers.": block, "norm1": "layernorm_before"}
    out = "attention.o_proj" if five else "attention.output.dense"
    names |= {"norm2": "layernorm_after", "linear1": mlp[0], "linear2": mlp[1], "self_attn.out_proj": out}
    names |= {"patches": "embeddings.patch_embeddings.projection", "token": "embeddings.cls_token"}
    names["positions"] = "embeddings.position_embeddings"
    found = {}
    for name, array in renamed(names).items():
        if "in_proj" in name:
            for part, each in zip(("query", "key", "value"), np.split(array, 3), strict=True):
                layer = f"attention.{part[0]}_proj." if five else f"attention.attention.{part}."
                found[prefix + name.replace("self_attn.in_proj_", layer)] = each
        else:
            found["classifier" + name[4:] if name.startswith("head") else prefix + name] = array
    pooler = f"{prefix}pooler.dense."
    return found | {f"{pooler}weight": np.ones((WIDTH, WIDTH)), f"{pooler}bias": np.ones(WIDTH)}


def timm():
    names = {"blocks.norm": "norm", "blocks.layers": "blocks", "self_attn.in_proj_": "attn.qkv."}
    names |= {"self_attn.out": "attn.", "attn._proj": "attn.proj", "linear1": "mlp.fc1", "linear2": "mlp.fc2"}
    return renamed(names | {"patches": "patch_embed.proj", "token": "cls_token", "positions": "pos_embed"})


def torchvision(mlp=("mlp.0", "mlp.3")):
    names = {"blocks.norm": "encoder.ln", "blocks.layers.": "encoder.layers.encoder_layer_", "linear1": mlp[0]}
    names |= {"linear2": mlp[1], "self_attn": "self_attention", "norm1": "ln_1", "norm2": "ln_2", "head": "heads.head"}
    return renamed(names | {"patches": "conv_proj", "token": "class_token", "positions": "encoder.pos_embedding"})


def jax_names(norm_2="LayerNorm_2", attention="MultiHeadDotProductAttention_1", mlp="MlpBlock_3", prefix="", **options):
    """Of vision_transformer; ``options``: ``positions``, and ``scanned`` as of big_vision."""
    arrays, found = REFERENCE, {}

    def layer(name, ours, of_norm=False):
        weight = arrays[f"{ours}.weight"]
        weight = weight.transpose(2, 3, 1, 0) if weight.ndim > 2 else weight.T
        found[f"{name}/{'scale' if of_norm else 'kernel'}"] = weight
        found[f"{name}/bias"] = arrays[f"{ours}.bias"]

    for i in range(2):
        block, ours = f"Transformer/encoderblock_{i}", f"blocks.layers.{i}"
        layer(f"{block}/LayerNorm_0", f"{ours}.norm1", of_norm=True)
        layer(f"{block}/{norm_2}", f"{ours}.norm2", of_norm=True)
        layer(f"{block}/{mlp}/Dense_0", f"{ours}.linear1")
        layer(f"{block}/{mlp}/Dense_1", f"{ours}.linear2")
        weights, biases = (np.split(arrays[f"{ours}.self_attn.in_proj_{leaf}"], 3) for leaf in ("weight", "bias"))
        for name, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True):
            found[f"{block}/{attention}/{name}/kernel"] = weight.T.reshape(WIDTH, HEADS, -1)
            found[f"{block}/{attention}/{name}/bias"] = bias.reshape(HEADS, -1)
        out = arrays[f"{ours}.self_attn.out_proj.weight"]
        found[f"{block}/{attention}/out/kernel"] = out.T.reshape(HEADS, -1, WIDTH)
        found[f"{block}/{attention}/out/bias"] = arrays[f"{ours}.self_attn.out_proj.bias"]
    if options.get("scanned"):
        blocks = {name: found.pop(name) for name in list(found)}
        first = [name for name in blocks if "encoderblock_0" in name]
        stacked = {name: np.stack([blocks[name], blocks[name.replace("block_0", "block_1")]]) for name in first}
        found |= renamed({"encoderblock_0": "encoderblock"}, stacked)
    layer("Transformer/encoder_norm", "blocks.norm", of_norm=True)
    layer("embedding", "patches")
    layer("head", "head")
    found["cls"] = arrays["token"]
    found[options.get("positions", "Transformer/posembed_input/pos_embedding")] = arrays["positions"]
    return {prefix + name: array for name, array in found.items()}


BIG_VISION = dict(norm_2="LayerNorm_1", attention="MultiHeadDotProductAttention_0", mlp="MlpBlock_0")
BIG_VISION |= dict(positions="pos_embedding")
FILES = {
    "timm": timm(),
    "hugging_face": hugging_face(),
    "hugging_face_5": hugging_face(5),
    "hugging_face_in21k": hugging_face(prefix=""),
    "torchvision": torchvision(),
    "torchvision_old": torchvision(("mlp.linear_1", "mlp.linear_2")),
    "vision_transformer": jax_names(),
    "big_vision": jax_names(**BIG_VISION),
    "big_vision_scanned": jax_names(**BIG_VISION, scanned=True, prefix="params/"),
    "trainer": jax_names(prefix="opt/target/") | {"opt/state/step": np.ones(())},
}


EXTRA = {"pre_logits/kernel": np.ones((8, 8)), "pre_logits/bias": np.ones(8)}


def write(folder, arrays):
    """As npz if the names are JAX's; safetensors writes arrays as they are in memory. None leaves an array out."""
    arrays = {name: array for name, array in arrays.items() if array is not None}
    if any("kernel" in name for name in arrays):
        np.savez(file := folder / "weights.npz", **arrays)
    else:
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, file := folder / "weights")
    return file


def vit(classes=CLASSES, shape=(4, 6, 3), **options):
    return Model(nn.ViT(classes, **OPTIONS | options), shape)


def initial(model, value=1.0):
    """Variables of the model that are this value, without drawing them."""
    return jax.tree.map(lambda leaf: np.full(leaf.shape, value, leaf.dtype), model.variable_shapes())


def loaded(model, file):
    """The variables of the file, by path, from initial ones of 1."""
    model = load_pretrained(model, file)
    return masks.by_path(model.reinitialize(model, initial(model), jax.random.key(0)).params)


@pytest.mark.filterwarnings("ignore:.*outputs are those of")
def test_files_of_all_libraries(float64, tmp_path):
    """Outputs as PyTorch's, and the same arrays of all files; nothing is left as it was."""
    images = np.random.default_rng(0).normal(size=(5, 4, 6, 3))
    expected = Reference()(torch.tensor(images).permute(0, 3, 1, 2)).detach().numpy()
    model = vit()
    first = loaded(model, write(tmp_path, FILES["timm"]))
    params = masks.replace(model.variable_shapes().params, first)
    apply = functools.partial(model.module.apply, train=False)
    arguments = {"params": params}, images, np.ones(5, bool)
    assert_close(compiled(apply, *arguments)(*arguments).logits, expected, 1e-10)
    assert {leaf.dtype for leaf in first.values()} == {np.dtype("float64")}
    for arrays in FILES.values():
        found = loaded(vit(), write(tmp_path, arrays))
        assert jax.tree.all(jax.tree.map(np.array_equal, found, first))
    save_weights(tmp_path / "own", Variables(params, {}))
    assert jax.tree.all(jax.tree.map(np.array_equal, loaded(vit(), tmp_path / "own"), found))


@cases(
    ("timm", dict(epsilon=1e-6, gelu="erf"), dict(epsilon=1e-5), "timm only with epsilon=1e-06; .* epsilon=1e-05"),
    ("torchvision", dict(epsilon=1e-6, gelu="erf"), dict(gelu="tanh"), "torchvision only with gelu='erf'; the"),
    ("hugging_face", dict(epsilon=1e-12, gelu="erf"), {}, "Hugging Face only with epsilon=1e-12; the network has"),
    ("big_vision", dict(epsilon=1e-6, gelu="tanh"), {}, "the JAX codes only with gelu='tanh'; .* has gelu='erf'"),
)
def test_options_of_a_library(whose, usual, other, message, tmp_path):
    """Others than a library's are pointed out."""
    file = write(tmp_path, FILES[whose])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_pretrained(vit(**usual), file)
    with pytest.warns(UserWarning, match=message):
        load_pretrained(vit(**other), file)


def test_models_with_equal_weights_are_equal(tmp_path):
    """So they share compiled programs; the classifier may be drawn by another function afterwards."""
    file = write(tmp_path, FILES["timm"])
    one, other = load_pretrained(vit(), file), load_pretrained(vit(), file)
    assert one == other and hash(one) == hash(other) and one != vit()
    assert json.dumps(describe(one)) == json.dumps(describe(other)) != json.dumps(describe(vit()))  # so a run resumes
    changed = write(tmp_path, FILES["timm"] | {"head.bias": np.zeros(CLASSES)})
    message = "params/Dense_0/bias does not fit: the network was changed after"
    check(message, one.with_module(num_classes=4).variable_shapes)
    changed = load_pretrained(vit(), changed)
    assert changed != one and describe(changed) != describe(one)
    drawn = load_pretrained(Model(vit().module, (4, 6, 3), orthogonal_head), file)
    kernel = masks.by_path(drawn.reinitialize(drawn, initial(drawn), jax.random.key(0)).params)["Dense_0/kernel"]
    assert_close(kernel.T @ kernel, np.eye(CLASSES), 1e-5)


@pytest.mark.filterwarnings("ignore:.*outputs are those of")
@cases(
    ("timm", vit(4), {}, r"head.bias is \[3\], expected \[4\], head.weight is \[3, 8\], expected \[4, 8\]"),
    ("timm", vit(), {"head.weight": None, "head.bias": None}, r"head.bias is missing, expected \[3\], head.w"),
    ("timm", vit(head=nn.heads.ETF), {}, "the network's is not linear on the features"),
    ("timm", vit(head=nn.heads.Simplex), {}, "the network's is not linear on the features"),
    ("timm", vit(projector="moon", projector_dim=8), {}, "the network's is not linear on the features"),
    ("vision_transformer", vit(), EXTRA, "the file's follows pre_logits, a layer that the network lacks"),
)
def test_another_classifier(whose, model, change, reason, tmp_path):
    """It stays as it was, and the rest is loaded."""
    with pytest.warns(UserWarning, match=f"the classifier keeps its initial weights: {reason}"):
        found = loaded(model, write(tmp_path, FILES[whose] | change))
    for path, leaf in found.items():
        is_other = not path.startswith(("block", "patches", "norm", "token", "positions"))
        assert (leaf == 1).all() == is_other, path


@pytest.mark.filterwarnings("ignore:.*outputs are those of")
def test_half_precision(tmp_path):
    """bfloat16 in npz, where it is two bytes without a name, and in safetensors."""
    for whose in ("big_vision", "timm"):
        arrays = {name: array.astype(ml_dtypes.bfloat16) for name, array in FILES[whose].items()}
        found = loaded(vit(), write(tmp_path, arrays))
        assert {leaf.dtype for leaf in found.values()} == {np.dtype("float32")}
        np.testing.assert_array_equal(found["norm/scale"], REFERENCE["blocks.norm.weight"].astype(ml_dtypes.bfloat16))


@cases((5, 3), (3, 7), (4, 4), (1, 3), (6, 1))
def test_interpolation(new, old):
    """As PyTorch's and SciPy's."""
    values = np.random.default_rng(0).normal(size=(old, 2))
    image = torch.tensor(values.T[None, :, :, None]).expand(1, 2, old, 3)
    for kind, mode, antialias in (
        ("cubic", "bicubic", False), ("cubic_antialias", "bicubic", True), ("linear", "bilinear", False),
        ("cubic_corners", "bicubic", False),
    ):  # fmt: skip
        options = dict(mode=mode, align_corners=kind == "cubic_corners", antialias=antialias)
        expected = interpolate(image, (new, 3), **options)[0, :, :, 0].T
        assert_close(interpolation_matrix(new, old, kind) @ values, expected.numpy(), 1e-12)
    if new > 1:
        zoomed = scipy.ndimage.zoom(values, (new / old, 1), order=1)
        assert_close(interpolation_matrix(new, old, "corners") @ values, zoomed, 1e-12)


@pytest.mark.filterwarnings("ignore:.*outputs are those of")
@cases(
    ("torchvision", "encoder.pos_embedding", "cubic_corners"),
    ("timm", "pos_embed", "cubic_antialias"),
    ("hugging_face", "vit.embeddings.position_embeddings", "cubic"),
    ("vision_transformer", "Transformer/posembed_input/pos_embedding", "corners"),
)
def test_positions_are_interpolated_as_by_the_library(whose, name, kind, tmp_path):
    """By rows and columns, here of a grid that is not square; the class token's row is apart."""
    square = np.random.default_rng(1).normal(size=(10, WIDTH))
    rows, columns = (interpolation_matrix(extent, 3, kind) for extent in (2, 5))
    grid = np.einsum("ia,jb,abw->ijw", rows, columns, square[1:].reshape(3, 3, WIDTH))
    file = write(tmp_path, FILES[whose] | {name: square[None]})
    found = loaded(vit(shape=(4, 10, 3)), file)["positions"]
    assert_close(found, np.concatenate([square[:1], grid.reshape(10, WIDTH)]), 1e-6)


def test_positions_without_a_class_token():
    """They are 0 where only patches have any."""
    square = np.random.default_rng(1).normal(size=(10, WIDTH))
    of_patches = fit_positions(square[1:], (3, 3), True, "cubic")
    assert_close(of_patches, np.concatenate([np.zeros((1, WIDTH)), square[1:]]), 1e-12)
    assert_close(fit_positions(square[1:], (3, 3), False, "corners"), square[1:], 1e-12)
    for rows, has_token in ((square, False), (square[:8], True)):
        assert fit_positions(rows, (3, 3), has_token, "cubic") is None


NO_KEYS = r"codes: wrong .*block_0,1/MultiHeadDotProductAttention_1/key/kernel \[8, 2, 4\], expected \[8, 4, 2\]"


@cases(
    ("timm", vit(depth=4), {"norm.bias": None}, r"names of timm: missing blocks.2,3.attn.qkv.bias \[24\], .*,"),
    ("timm", vit(mlp_width=16), {}, r"wrong blocks.0,1.mlp.fc1.bias \[12\], expected \[16\], blocks.0,1.mlp.fc1.w"),
    ("timm", vit(pool="mean"), {}, r"unexpected cls_token \[1, 1, 8\]; wrong pos_embed \[1, 7, 8\], .* \[1, 6"),
    ("timm", Model(nn.MLP(3), (4, 6, 3)), {}, "it holds the weights of a ViT, by .* of timm; the network is MLP"),
    ("timm", vit(), {"patch_embed.proj.weight": None}, "it holds .*; expected the weights of a ViT, such as patch"),
    ("big_vision", vit(heads=4, gelu="tanh"), {}, NO_KEYS),
)
def test_what_does_not_fit_is_named(whose, model, change, message, tmp_path):
    file = write(tmp_path, FILES[whose] | change)
    check(f"^{file}.*{message}", load_pretrained, model, file)


def test_other_files(tmp_path):
    (tmp_path / "text").write_text("no weights")
    np.savez(tmp_path / "objects.npz", **{"embedding/kernel": np.array([{}], object)})
    for name in ("text", "objects.npz", "none"):
        check(f"{name}: not a readable safetensors", load_pretrained, vit(), tmp_path / name)
    message = "interpolation 'nearest': expected one of cubic"
    check(message, load_pretrained, vit(), tmp_path / "none", interpolation="nearest")


@pytest.mark.filterwarnings("ignore:.*outputs are those of")
@cases(
    ("timm", {"norm.bias": np.full(WIDTH, np.nan)}, "norm.bias has NaN, infinity or values beyond float32"),
    ("timm", {"norm.bias": np.full(WIDTH, 1e39)}, "norm.bias has NaN, infinity or values beyond float32; "),
    ("timm", {"norm.bias": np.full(WIDTH, np.inf, ml_dtypes.bfloat16)}, "norm.bias has .* values beyond bfloat16"),
    ("big_vision", {"head/bias": np.full(CLASSES, -np.inf)}, "head/bias has NaN, infinity or"),
    ("big_vision", {"head/bias/x": np.ones(3)}, "it holds head/bias and head/bias/x, expected an array or others"),
    ("timm", {"params/a": np.ones(3), "params/a/b/c": np.ones(3)}, "it holds params/a and params/a/b/c, expected"),
)
def test_weights_that_are_not_finite_or_not_a_tree(whose, change, message, tmp_path):
    """In npz and in safetensors; the classifier that is not loaded may be anything."""
    file = write(tmp_path, FILES[whose] | change)
    check(f"^{file}: {message}", load_pretrained, vit(), file)
    unused = write(tmp_path, FILES["timm"] | {"head.bias": np.full(CLASSES, np.nan)})
    with pytest.warns(UserWarning, match="keeps its initial weights"):
        load_pretrained(vit(CLASSES + 1), unused)


@pytest.mark.filterwarnings("ignore:.*keeps its initial weights")
def test_any_network_from_our_own_files(tmp_path):
    """All but a classifier of other classes."""
    save_weights(tmp_path / "own", initial(cnn(4), 2.0))
    with pytest.warns(UserWarning, match=r"Dense_0/bias is \[4\], expected \[6\]"):
        model = load_pretrained(cnn(6), tmp_path / "own")
    found = model.reinitialize(model, initial(model), jax.random.key(0))
    assert all((leaf == 2).all() for leaf in jax.tree.leaves((found.params["Conv_0"], found.batch_stats)))
    assert (found.params["Dense_0"]["kernel"] == 1).all()
    message = r"of save_weights: missing .*params/BatchNorm_1/bias \[7\], .*\(5 in all"
    check(message, load_pretrained, cnn(4, channels=(5, 7)), tmp_path / "own")


def cnn(classes, channels=(5,)):
    return Model(nn.SmallCNN(classes, channels=channels), (4, 4, 1))
