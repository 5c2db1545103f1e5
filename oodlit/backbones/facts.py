"""Facts about a network that can be observed from outside: device, contents, usable logits."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from oodlit.backbones.heads import Heads
from oodlit.backbones.loading import Exported
from oodlit.base.errors import DataError, InvalidArgumentError, OodlitError
from oodlit.base.text.warn import warn

IS_RANDOM = (
    "returned different outputs for the same images in two passes, so scores are random; make the network"
    " deterministic in eval mode, for example with F.dropout(..., training=self.training)"
)
"""Explanation for a network that draws random numbers."""
_CLASSIFIERS = ("fc", "head", "heads", "classifier", "last_linear")


def place_of(network: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Return device and floating-point type of a network; CPU and float32 if it has no weights."""
    for value in (*network.parameters(), *network.buffers()):
        if value.is_floating_point():
            return value.device, value.dtype
    return next((value.device for value in network.parameters()), torch.device("cpu")), torch.float32


def has_dropout(network: nn.Module) -> bool:
    """Return whether any dropout layer is effective in training mode."""
    return any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in network.modules())


def hides_layers(network: nn.Module) -> str:
    """Return why hooks cannot inspect a network; empty if they can."""
    if isinstance(network, torch.jit.ScriptModule):
        return "the network is compiled by torch.jit, so its layers cannot be inspected"
    if isinstance(network, Exported):
        return "the network is an exported program, so its layers cannot be inspected"
    return ""


def is_headless(network: nn.Module) -> bool:
    """Return whether a network evidently has no classifier: timm's `num_classes=0`, or an Identity in its place."""
    classifier = getattr(network, "get_classifier", None)
    if callable(classifier):
        return getattr(network, "num_classes", None) == 0 or isinstance(classifier(), nn.Identity)
    placed = [name for name, part in network.named_children() if name in _CLASSIFIERS or isinstance(part, nn.Linear)]
    return bool(placed) and all(type(getattr(network, name)) is nn.Identity for name in placed)


def check_logits(logits: Tensor, name: str) -> None:
    """Refuse NaN; warn if all classes get the same logit.

    Raises:
        InvalidArgumentError: A logit is NaN.
    """
    if bool(logits.isnan().any()):
        raise InvalidArgumentError(
            f"{name} returned NaN for the first images; check its weights, the precision and the transform"
        )
    if logits.shape[1] > 1 and bool((logits == logits[:, :1]).all()):
        text = "check that the weights are trained and belong to this network"
        warn(f"{name} returned the same logits for all classes; {text}")


def is_random(first: Iterable[Tensor | None], second: Iterable[Tensor | None], name: str) -> bool:
    """Return whether the outputs of two passes over the same images differ by more than rounding; then also warn.

    Args:
        first: Outputs of the first pass.
        second: Outputs of the second pass, in the same order.
        name: Name of the network in the warning.
    """
    one, other = ([value.detach().cpu().double() for value in made if value is not None] for made in (first, second))
    if len(one) == len(other) and all(map(_is_close, one, other)):
        return False
    warn(f"{name} {IS_RANDOM}")
    return True


def _is_close(value: Tensor, other: Tensor) -> bool:
    """Compare in units of the largest value, since some kernels add in any order."""
    if value.shape != other.shape:
        return False
    sizes = other[other.isfinite()].abs().tolist()
    return torch.allclose(value, other, rtol=0, atol=1e-4 * max(sizes, default=0), equal_nan=True)


def check_features(heads: Heads, name: str, features: Tensor | None) -> None:
    """Warn if the features are the input of a layer that does not determine the logits."""
    if heads.problem and features is not None:
        others = f". Other layers with one output per logit: {', '.join(heads.others)}" if heads.others else ""
        # some problems already end with this advice
        fix = "" if "head=" in heads.problem else ". If another layer is the head, pass OODModule(..., head='...')"
        warn(
            f"{name}: the features do not determine the logits. The features are the {features.shape[1]} inputs of"
            f" {heads.label}; {heads.problem}{others}{fix}"
        )


def published_as(network: nn.Module, transform: object) -> dict[str, Any] | None:
    """Return name, size and crop under which timm publishes this network with this transform; None if it does not.

    Returns:
        `model`, `img_size`, `crop_pct`; None for networks outside timm, and for transforms other than timm's
        evaluation: a resize, a center crop and a normalization.
    """
    config = getattr(network, "pretrained_cfg", None) or {}
    steps = {type(step).__name__: step for step in getattr(transform, "transforms", [])}
    resize, crop = steps.get("Resize"), steps.get("CenterCrop")
    if not config.get("tag") or not config.get("architecture") or resize is None or crop is None:
        return None
    sizes = [size if isinstance(size, int) else min(size) for size in (resize.size, crop.size)]
    shares = [share for share in (config.get("crop_pct"), config.get("test_crop_pct"), 1.0) if share]
    # timm resizes to floor(size / crop_pct): several fractions give one size, and the network's own is meant
    fitting = [share for share in shares if math.floor(sizes[1] / share) == sizes[0]]
    name = f"{config['architecture']}.{config['tag']}"
    return {"model": name, "img_size": sizes[1], "crop_pct": fitting[0]} if fitting else None


@contextmanager
def explain_pass(name: str, network: nn.Module, batch: Mapping[str, Any]) -> Iterator[None]:
    """Explain an error of a network during a forward pass; errors of oodlit and of full memory stay as they are.

    Args:
        name: Name of the network.
        network: The network.
        batch: `image`, a tensor or a list of images, and `key`, `dataset/key` of each, if they have keys.

    Raises:
        DataError: The network failed on a batch of a data set.
        InvalidArgumentError: The network failed on images without keys.
    """
    try:
        yield
    except (OodlitError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError, AttributeError) as error:
        images, keys, dtype = batch["image"], batch.get("key"), place_of(network)[1]
        place = f"data set {keys[0].partition('/')[0]!r}, batch that begins with {keys[0]!r}: " if keys else ""
        shapes = dict.fromkeys(str(tuple(image.shape)) for image in images)
        precision = {torch.float16: "16-true", torch.bfloat16: "bf16-true"}.get(dtype)
        advice = f". In a Trainer, pass precision={precision!r}" if precision else ""
        raise (DataError if keys else InvalidArgumentError)(
            f"{place}{name}: the network (weights in {dtype}) failed on {len(images)} images of shape"
            f" {' or '.join([*shapes][:3])} and dtype {images[0].dtype}:"
            f" {(str(error).splitlines() or [repr(error)])[0].rstrip('.')}. The transform must return one float tensor"
            " (channels, height, width) per image, in a size that the network accepts. If a data set contains tensors,"
            f" they are used without the transform and must already have such a size{advice}"
        ) from error


def as_in_run(images: Tensor, dtype: torch.dtype, precision: Any) -> tuple[Tensor, AbstractContextManager[Any]]:
    """Convert images as the precision of the run does for weights of `dtype`; return them with the context of a pass.

    Precisions such as "bf16-true" convert the weights only after the probe; the images then have the dtype of the
    weights.
    """
    if precision is None:
        return images, nullcontext()
    converted: Tensor = precision.convert_input(images)
    if converted.dtype == dtype != torch.float32 or dtype.itemsize < 4:
        return converted, precision.forward_context()
    return images.to(dtype) if converted.dtype != images.dtype else images, nullcontext()
