"""Published weights without a network connection: an immediate answer, and no unnecessary requests."""

import sys
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import timm
from huggingface_hub import constants

from oodlit.backbones import hub
from oodlit.backbones.clip import from_open_clip
from oodlit.backbones.loading import load_network
from oodlit.errors import InvalidArgumentError


class Session:
    """The hub's HTTP session; the first `failures` requests fail."""

    def __init__(self, failures: int) -> None:
        self.failures, self.asked = failures, list[tuple[str, float]]()

    def head(self, url: str, *, timeout: float) -> None:
        self.asked.append((url, timeout))
        if len(self.asked) <= self.failures:
            raise ConnectionError("Name or service not known")


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub, "PAUSE_S", 0.0)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    return tmp_path / "hub"


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Session:
    """A network connection that is down until a test enables it."""
    session = Session(failures=99)
    monkeypatch.setattr(huggingface_hub.utils, "get_session", lambda: session)
    return session


@pytest.fixture
def created(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names that timm was asked to make, with random weights in place of published ones."""
    names: list[str] = []
    real = timm.create_model

    def create(name: str, *, pretrained: bool) -> object:
        assert pretrained
        names.append(name)
        return real(name, pretrained=False)

    monkeypatch.setattr(timm, "create_model", create)
    return names


def keep(cache: Path, repository: str, file: str) -> None:
    """As the hub's cache looks when a file was fetched."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    for path, text in ((folder / "refs" / "main", "0" * 40), (folder / "snapshots" / ("0" * 40) / file, "weights")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_without_a_network_the_answer_comes_before_timm_tries(network: Session, created: list[str]) -> None:
    message = (
        r"^backbone 'resnet10t': \S+ or \S+ of 'timm/resnet10t\.c3_in1k' is not on this machine, and https://\S+ cannot"
        r" be reached \(ConnectionError: Name or service not known\); connect to the internet, or pass weights=PATH"
    )
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        load_network("resnet10t")
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert created == []
    assert network.asked == [(constants.ENDPOINT, constants.HF_HUB_ETAG_TIMEOUT)] * 2


@pytest.mark.parametrize("failures", [0, 1])
def test_with_a_network_nothing_changes(network: Session, created: list[str], failures: int) -> None:
    network.failures = failures
    load_network("resnet10t.c3_in1k")
    assert created == ["resnet10t.c3_in1k"]
    assert len(network.asked) == failures + 1


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_weights_that_are_there_need_no_network(
    network: Session, created: list[str], empty_cache: Path, file: str
) -> None:
    keep(empty_cache, "timm/resnet10t.c3_in1k", file)
    load_network("resnet10t")
    assert (created, network.asked) == (["resnet10t"], [])


def test_weights_of_older_versions_of_timm_are_left_to_timm(
    network: Session, created: list[str], tmp_path: Path
) -> None:
    url = str(timm.models.get_pretrained_cfg("resnet10t").url)
    old = tmp_path / "torch" / "hub" / "checkpoints" / url.rpartition("/")[2]
    old.parent.mkdir(parents=True)
    old.touch()
    load_network("resnet10t")
    assert (created, network.asked) == (["resnet10t"], [])


def test_random_weights_need_no_network(network: Session) -> None:
    load_network("resnet10t", None)
    assert network.asked == []


class AskedError(Exception):
    """The library was asked for the network: nothing had refused before."""


@pytest.mark.parametrize("published", ["timm/vit_base_patch16_clip_224.openai/", "owner/name/weights.bin", ""])
def test_clip_without_a_network(network: Session, monkeypatch: pytest.MonkeyPatch, published: str) -> None:
    def create(*_: object, **__: object) -> None:
        raise AskedError

    fake = SimpleNamespace(get_pretrained_cfg=lambda *_: {"hf_hub": published}, create_model_and_transforms=create)
    monkeypatch.setitem(sys.modules, "open_clip", fake)
    if published:
        with pytest.raises(InvalidArgumentError, match=r"^open_clip model 'ViT-B-16', .* pass pretrained=PATH"):
            from_open_clip("ViT-B-16", ["cat"], pretrained="openai")
    else:
        with pytest.raises(AskedError):
            from_open_clip("ViT-B-16", ["cat"], pretrained="a/local/file")


def test_clip_weights_that_are_there_need_no_network(
    network: Session, monkeypatch: pytest.MonkeyPatch, empty_cache: Path
) -> None:
    def create(*_: object, **__: object) -> None:
        raise AskedError

    keep(empty_cache, "owner/name", "weights.safetensors")
    config = {"hf_hub": "owner/name/weights.bin"}
    fake = SimpleNamespace(get_pretrained_cfg=lambda *_: config, create_model_and_transforms=create)
    monkeypatch.setitem(sys.modules, "open_clip", fake)
    with pytest.raises(AskedError):
        from_open_clip("ViT-B-16", ["cat"], pretrained="openai")
    assert network.asked == []


@pytest.mark.parametrize("prefix", ["hf-hub:", "hf_hub:"])
@pytest.mark.parametrize("weights", ["hub", None])
def test_hub_names_without_a_network_connection(network: Session, prefix: str, weights: str | None) -> None:
    """`hf-hub:` names are known backbones."""
    file = "config.json of" if weights is None else "model.safetensors or"
    with pytest.raises(
        InvalidArgumentError, match=rf"^backbone '{prefix}timm/resnet10t.c3_in1k': {file} .* cannot be reached"
    ):
        load_network(f"{prefix}timm/resnet10t.c3_in1k", weights)


def test_hub_names_that_are_on_this_machine(
    network: Session, created: list[str], empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(empty_cache, "owner/net", "model.safetensors")
    real = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, *, pretrained: real("resnet10t", pretrained=pretrained))
    load_network("hf-hub:owner/net")
    assert (created, network.asked) == (["resnet10t"], [])
