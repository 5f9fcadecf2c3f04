"""Initial weights from files of PyTorch: state dicts of ``to_torch`` and of torchvision's ResNets, and other files."""

import dataclasses
import functools
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from conftest import assert_close, assert_same_bits, cases, check, one_line
from safetensors.torch import save_file
from tiny_networks import TINY, batch_of, compiled, tiny_model
from torch.nn.functional import batch_norm, conv2d, linear

from fedjax_collapse import Model, load_pretrained, nn, save_weights
from fedjax_collapse.config.keys import NETWORKS
from fedjax_collapse.core.records import Variables
from fedjax_collapse.nn.adapters import LoRA
from fedjax_collapse.nn.interchange import torch_networks
from fedjax_collapse.nn.interchange.torch_names import of_torchvision

TOKENS = {name: dict(num_classes=12) for name in ("pfl_transformer", "shakespeare_lstm", "stackoverflow_lstm")}
TOKENS["pfl_transformer"] |= dict(embedding=8, depth=1, heads=2, mlp_width=6)
TORCH = {name: tiny_model(name) for name in TINY}


def drawn(model: Model) -> Variables:
    """Variables of which no two leaves are equal; variances are positive."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: rng.uniform(0.5, 1.5, leaf.shape).astype(leaf.dtype), model.variable_shapes())


def loaded(model: Model, file: Path) -> Variables:
    """What the model starts from, without drawing the rest, which is 0."""
    model = load_pretrained(model, file)
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), model.variable_shapes())
    return model.reinitialize(model, zeros, jax.random.key(0))


def state_dict(model: Model, variables: Variables) -> dict[str, torch.Tensor]:
    """Of the network that ``to_torch`` returns."""
    network = torch_networks.twin(model)
    return torch_networks.load(network, torch_networks.arrays_in_order(model, variables)).state_dict()


@pytest.mark.parametrize("name", NETWORKS)
def test_saved_weights_are_loaded(name, tmp_path):
    """Of every network, by its name; of one in PyTorch every array from either format, without counters of batches."""
    model = TORCH.get(name) or Model(NETWORKS[name](**TOKENS[name]), (5,), input_dtype="int32")
    save_weights(tmp_path / "weights", variables := drawn(model))
    if name in TORCH:
        torch.save(arrays := state_dict(model, variables), tmp_path / "net.pt")
        save_file(arrays, tmp_path / "net.safetensors")
    for file in tmp_path.iterdir():
        assert_same_bits(loaded(model, file), variables)


@pytest.fixture
def mlp(tmp_path):
    """The file of an MLP in PyTorch, and its variables."""
    variables = drawn(TORCH["mlp"])
    torch.save(state_dict(TORCH["mlp"], variables), tmp_path / "net.pt")
    return tmp_path / "net.pt", variables


WRAPPED = {
    "state_dict": lambda state: {"epoch": 3, "state_dict": state, "optimizer": {"lr": 0.1}},
    "model": lambda state: {"model": {f"module.{name}": tensor for name, tensor in state.items()}},
    "parameters": lambda state: {f"_orig_mod.{name}": torch.nn.Parameter(tensor) for name, tensor in state.items()},
    "bfloat16": lambda state: {name: tensor.bfloat16() for name, tensor in state.items()},
}


@pytest.mark.parametrize("kind", WRAPPED)
@pytest.mark.parametrize("is_zip", [True, False])
def test_checkpoints(kind, is_zip, tmp_path):
    """State dicts in others, with prefixes of wrappers, in the older format, in half precision."""
    variables = drawn(TORCH["mlp"])
    variables = jax.tree.map(lambda leaf: np.round(leaf * 16) / 16, variables)  # which bfloat16 has
    found = WRAPPED[kind](state_dict(TORCH["mlp"], variables))
    torch.save(found, tmp_path / "net.pth", _use_new_zipfile_serialization=is_zip)
    assert_same_bits(loaded(TORCH["mlp"], tmp_path / "net.pth"), variables)


@pytest.mark.parametrize("change", [dict(num_classes=7), dict(head=nn.heads.ETF), dict(head=nn.heads.TwoHeads)])
def test_another_classifier(change, mlp):
    """It stays as it was, and the rest is loaded."""
    file, variables = mlp
    with pytest.warns(UserWarning, match="net.pt: the classifier keeps its initial weights: "):
        found = loaded(tiny_model("mlp", **change), file).params
    for layer, arrays in found.items():
        if layer in ("Dense_0", "Dense_1"):
            assert_same_bits(arrays, variables.params[layer])
        else:
            assert not any(leaf.any() for leaf in jax.tree.leaves(arrays))


def test_adapters_are_not_in_the_file(mlp):
    file, variables = mlp
    adapted = dataclasses.replace(TORCH["mlp"], adapters=LoRA(rank=2, layers=("Dense_1",)))
    found = loaded(adapted, file).params
    added = {name: found["Dense_1"].pop(name) for name in ("lora_a", "lora_b", "lora_scale")}
    assert not any(leaf.any() for leaf in added.values())
    assert_same_bits(found, variables.params)


@functools.cache
def resnet(*options, **stem):
    """A state dict by torchvision's names, of weights of which no two tensors are equal."""
    torch.manual_seed(0)
    model = our_resnet(*options, **stem)
    tensors = torch_networks.tensors(torch_networks.twin(model))
    for tensor in tensors:
        tensor.data.uniform_(0.5, 1.5) if tensor.ndim == 1 else tensor.data.normal_(0, 0.1)
    return dict(zip(of_torchvision(model).names.values(), tensors, strict=True))


def logits_of(state, images, blocks=(2, 1)):
    """torchvision's, without the max-pool: of basic blocks with two convolutions, or of bottlenecks with three."""

    def normalized(images, conv, norm, stride=1):
        images = conv2d(images, state[f"{conv}.weight"], None, stride, state[f"{conv}.weight"].shape[-1] // 2)
        leaves = ("running_mean", "running_var", "weight", "bias")
        return batch_norm(images, *(state[f"{norm}.{leaf}"] for leaf in leaves))

    images = normalized(images, "conv1", "bn1").relu()
    for stage, count in enumerate(blocks, 1):
        for index in range(count):
            block, outputs, stride = f"layer{stage}.{index}", images, 2 if stage > 1 and not index else 1
            last = 3 if f"{block}.conv3.weight" in state else 2
            for i in range(1, last + 1):
                outputs = outputs.relu() if i > 1 else outputs
                outputs = normalized(outputs, f"{block}.conv{i}", f"{block}.bn{i}", stride if i == last - 1 else 1)
            if f"{block}.downsample.0.weight" in state:
                images = normalized(images, f"{block}.downsample.0", f"{block}.downsample.1", stride)
            images = (outputs + images).relu()
    return linear(images.mean((2, 3)), state["fc.weight"], state["fc.bias"]).detach().numpy()


def our_resnet(kind=nn.ResNet18, blocks=(2, 1), **options):
    strides = (1, *[2] * (len(blocks) - 1))
    module = kind(4, blocks=blocks, strides=strides, width_multiplier=1 / 8, lowering="xla", **options)
    return Model(module, (8, 8, 3))


@pytest.mark.parametrize("kind", [nn.ResNet18, nn.ResNet50])
def test_torchvisions_resnets(kind, tmp_path):
    """Logits as torchvision's, of every kind of block: with and without a shortcut, of stride 2."""
    torch.save(resnet(kind), tmp_path / "resnet.pth")
    model, batch = our_resnet(kind), batch_of((8, 8, 3), garbage=0)
    arguments = loaded(model, tmp_path / "resnet.pth"), batch
    outputs, _ = compiled(functools.partial(model.apply, train=False), *arguments)(*arguments)
    images = torch.tensor(np.array(batch.inputs)).permute(0, 3, 1, 2)
    assert_close(outputs.logits, logits_of(resnet(kind), images), 1e-4)


def test_torchvisions_names():
    """Of the published sizes: all of them, and the last."""
    for kind, blocks, count in ((nn.ResNet18, (2, 2, 2, 2), 102), (nn.ResNet18, (3, 4, 6, 3), 182)):
        names = [*of_torchvision(Model(kind(1000, blocks=blocks), (32, 32, 3))).names.values()]
        assert len(set(names)) == len(names) == count and {"layer4.1.bn2.running_var", "fc.bias"} <= set(names)
    names = [*of_torchvision(Model(nn.ResNet50(1000), (32, 32, 3))).names.values()]
    assert len(set(names)) == 267 and "layer3.5.conv3.weight" in names and "layer1.0.downsample.1.weight" in names


def refused(model, file, message):
    """Raises in one line that begins with the file's name."""
    with one_line(f"^{file}.*{message}") as error:
        load_pretrained(model, file)
    assert len(str(error.value)) < 900


def mlp_state():
    return state_dict(TORCH["mlp"], drawn(TORCH["mlp"]))


@pytest.mark.filterwarnings("ignore:.*classifier keeps its initial")
@cases(
    (lambda: resnet(stem_size=7), our_resnet(), r"wrong conv1.weight \[8, 3, 7, 7\], expected \[8, 3, 3, 3\]; cha"),
    (resnet, our_resnet(blocks=(3, 1)), r"of torchvision: missing layer1.2.bn1.running_mean \[8\], .* \(10 in all"),
    (resnet, our_resnet(norm="none"), r"of to_torch: missing backbone.0.bias \[8\], .*; unexpected bn1.bias \[8\]"),
    (resnet, tiny_model("mlp", norm="batch"), r"it holds .* \(4\d in all\); .*, or of save_weights \(network mlp"),
    (mlp_state, tiny_model("mlp", hidden=(12, 9)), r"of to_torch: wrong backbone.3.bias \[8\], expected \[9\], .*"),
    (mlp_state, TORCH["small_cnn"], r"missing backbone.1.weight .*unexpected backbone.1|missing .*in all\); unex"),
)
def test_what_does_not_fit_is_named(saved, model, message, tmp_path):
    torch.save(saved(), file := tmp_path / "net.pt")
    refused(model, file, message)


def test_a_max_pool_is_pointed_out(tmp_path):
    """7x7 convolutions of torchvision have one, and 3x3 ones have none."""
    torch.save(resnet(stem_size=7), tmp_path / "resnet.pt")
    with pytest.warns(UserWarning, match="torchvision only with stem_stride=2 and a max-pool after the stem, which"):
        load_pretrained(our_resnet(stem_size=7), tmp_path / "resnet.pt")


class Trap:
    def __reduce__(self):
        return Path.touch, (Path("sprung"),)


@pytest.mark.filterwarnings("ignore:.*classifier keeps its initial")
def test_code_is_not_run_and_damage_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for content, message in (
        ({"model": torch.nn.Linear(2, 2)}, "it has a torch.nn.modules.linear.Linear, and objects with code are never"),
        ({"backbone.1.weight": Trap()}, "objects with code are never loaded: save model.state_dict"),
        ([torch.ones(2)], "it holds a list, expected a state dict: save model.state_dict"),
        ({"epoch": 3}, r"of to_torch: missing backbone.1.bias \[12\], .*; change"),
    ):
        torch.save(content, tmp_path / "net.pt")
        refused(TORCH["mlp"], tmp_path / "net.pt", message)
    assert not Path("sprung").exists()
    torch.save(mlp_state(), tmp_path / "net.pt")
    whole = (tmp_path / "net.pt").read_bytes()
    middle = len(whole) // 2
    for content in (b"", whole[:middle], whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :], whole[:4]):
        (tmp_path / "net.pt").write_bytes(content)
        refused(TORCH["mlp"], tmp_path / "net.pt", "not a readable safetensors")
    torch.save({"a": torch.ones(300)}, tmp_path / "net.pt", _use_new_zipfile_serialization=False)
    whole = (tmp_path / "net.pt").read_bytes()
    for content in (whole[:100], whole[:100] + bytes(20) + whole[120:]):
        (tmp_path / "net.pt").write_bytes(content)
        refused(TORCH["mlp"], tmp_path / "net.pt", "not a readable safetensors, npz or PyTorch file")


def test_pytorch_is_not_needed_otherwise(mlp, tmp_path, monkeypatch):
    """One line says so, of either format."""
    pickled, variables = mlp
    save_file(mlp_state(), tmp_path / "net.safetensors")
    save_weights(tmp_path / "own", variables)
    monkeypatch.setitem(sys.modules, "torch", None)
    for module in ("torch_files", "torch_networks"):
        monkeypatch.delitem(sys.modules, f"fedjax_collapse.nn.interchange.{module}", raising=False)
    for file in (pickled, tmp_path / "net.safetensors"):
        check(r'PyTorch is not installed: pip install "fedjax_collapse.export."', load_pretrained, TORCH["mlp"], file)
    assert_same_bits(loaded(TORCH["mlp"], tmp_path / "own"), variables)
