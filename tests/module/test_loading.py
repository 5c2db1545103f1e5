"""Names and files that networks come from."""

import logging
import sys
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import nn

from oodlit import OODModule
from oodlit.backbones.loading import load_network
from oodlit.errors import InvalidArgumentError, UnknownNameError
from oodlit.testing.backbones import TinyConvNet

MODULE = """
from torch import nn
from oodlit.testing.backbones import TinyConvNet
class MyModel(TinyConvNet):
    pass
class WithArgument(TinyConvNet):
    def __init__(self, depth):
        super().__init__(6)
def build():
    return TinyConvNet(4)
def gives_text():
    return "network"
ready = TinyConvNet(3)
number = 7
"""


@pytest.fixture
def my_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_own_models.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_own_models"
    sys.modules.pop("my_own_models", None)


@pytest.mark.parametrize(("what", "classes"), [("MyModel", 6), ("build", 4), ("ready", 3)])
@torch.no_grad()
def test_dotted_paths(my_models, what, classes):
    """A backbone can be a dotted path such as `my_model.MyModel`."""
    module = OODModule(f"{my_models}.{what}")
    assert module.name == f"{my_models}.{what}"
    assert module(torch.rand(2, 3, 8, 8)).logits.shape == (2, classes)
    assert not module.network.training


def test_a_path_within_a_package_with_weights_from_a_file(tmp_path):
    trained = TinyConvNet(6)
    with torch.no_grad():
        trained.conv.weight.add_(1.0)
    torch.save(trained.state_dict(), tmp_path / "net.pt")
    module = OODModule("oodlit.testing.backbones.TinyConvNet", weights=tmp_path / "net.pt")
    assert module.fingerprint == OODModule(trained).fingerprint


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("MyModl", "cannot be imported: .*MyModl"),
        ("WithArgument", "missing a required argument: 'depth'; pass arguments as init_args"),
        ("gives_text", "expected it to return an nn.Module, got str"),
        ("number", "expected a class or function, got int"),
    ],
)
def test_paths_without_a_network_are_refused(my_models, what, message):
    with pytest.raises(InvalidArgumentError, match=message):
        OODModule(f"{my_models}.{what}")


@pytest.mark.parametrize("name", ["resnet_50", "nowhere.Model", "no.where.Model", "resnet_50.a1_in1k", ".x", ""])
def test_unknown_names_are_refused(name):
    with pytest.raises(UnknownNameError, match="unknown backbone"):
        OODModule(name)


class Trained(TinyConvNet):
    def __init__(self) -> None:
        super().__init__(6)
        with torch.no_grad():
            self.conv.weight.add_(1.0)


def lightning_checkpoint(prefix: str, **more) -> dict:
    state = {f"{prefix}{name}": value for name, value in Trained().state_dict().items()}
    return {"state_dict": state | more, "epoch": 3, "pytorch-lightning_version": "2.6", "hyper_parameters": {"lr": 0.1}}


@pytest.mark.parametrize("prefix", ["model.", "net.backbone.", "model._orig_mod.", "module.model.", ""])
def test_prefixes_of_lightning_checkpoints_are_removed(tmp_path, caplog, prefix):
    """A checkpoint with the prefix "model." loads into the bare network."""
    torch.save(
        lightning_checkpoint(prefix, **({"criterion.weight": torch.ones(6)} if prefix else {})), tmp_path / "a.ckpt"
    )
    with caplog.at_level(logging.INFO):
        module = OODModule(TinyConvNet(6), weights=tmp_path / "a.ckpt")
    assert module.fingerprint == OODModule(Trained()).fingerprint
    said = [r.getMessage() for r in caplog.records if "the prefix" in r.getMessage()]
    assert len(said) == bool(prefix)
    if prefix:
        assert repr(prefix.removeprefix("module.")) in said[0]
        assert said[0].endswith("; ignored 1 name without this prefix")


def test_duplicate_weights_are_refused(tmp_path):
    state = lightning_checkpoint("model.")["state_dict"] | lightning_checkpoint("ema.")["state_dict"]
    torch.save({"state_dict": state}, tmp_path / "a.ckpt")
    with pytest.raises(InvalidArgumentError, match=r"2 times, with the prefixes 'ema\.', 'model\.'"):
        OODModule(TinyConvNet(6), weights=tmp_path / "a.ckpt")


def test_weights_of_another_network_are_refused(tmp_path):
    state = lightning_checkpoint("model.")
    del state["state_dict"]["model.head.bias"]
    torch.save(state, tmp_path / "a.ckpt")
    with pytest.raises(
        InvalidArgumentError, match=r"(?s)cannot be loaded .*head\.bias.*; pass the weights of this network$"
    ):
        load_network(TinyConvNet(6), tmp_path / "a.ckpt")


def test_timm_name_with_a_prefixed_checkpoint(tmp_path):
    network = load_network("resnet10t", None)
    torch.save({"state_dict": {f"model.{k}": v for k, v in network.state_dict().items()}}, tmp_path / "a.ckpt")
    loaded = load_network("resnet10t", tmp_path / "a.ckpt")
    assert all(torch.equal(v, network.state_dict()[k]) for k, v in loaded.state_dict().items())
    assert isinstance(loaded, nn.Module)


def test_a_checkpoint_with_other_objects_names_a_way_that_exists(tmp_path):
    torch.save({"state_dict": TinyConvNet(6).state_dict(), "rate": Fraction(1, 3)}, tmp_path / "a.ckpt")
    with pytest.raises(InvalidArgumentError, match=r"save only the weights, with torch\.save") as caught:
        OODModule(TinyConvNet(6), weights=tmp_path / "a.ckpt")
    assert "weights_only" not in str(caught.value)


def test_a_module_that_is_not_found_is_named():
    with pytest.raises(UnknownNameError, match=r"'my_networks\.Net'.* folder that contains my_networks to PYTHONPATH"):
        OODModule("my_networks.Net")
