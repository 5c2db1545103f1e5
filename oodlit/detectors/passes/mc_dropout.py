"""Monte-Carlo dropout."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from oodlit.base.checks import check_choice, check_ints, check_seed
from oodlit.base.errors import RequirementError
from oodlit.base.outputs import BackboneFacts, Outputs, Scores
from oodlit.detectors.contract import Reference, TrainFreeDetector
from oodlit.detectors.statistics import hash_strings

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def _has_dropout(detector: object, facts: BackboneFacts) -> str:
    return "" if facts.has_dropout else f"needs nn.Dropout with p > 0; {facts.name} has none"


@final
class MCDropout(TrainFreeDetector):
    """S = sum p log p of the mean softmax p of several passes with dropout on, or max p.

    Only `nn.Dropout*` layers are active; batch norm and stochastic depth stay in eval mode. The masks follow from the
    image's key (or its pixels), the pass and the seed: an image has the same score in any batch and process.

    Args:
        passes: Forward passes per image, at least 1, default 30.
        measure: "entropy" (default; the negative entropy) or "max".
        seed: Seed of the masks, 0 to 2^32 - 1, default 0.

    Raises:
        InvalidArgumentError: An argument is out of range.

    Example:
        >>> MCDropout(passes=10, measure="max").extra_passes
        10
    """

    needs = frozenset({"images", "model"})
    requirements = (_has_dropout,)
    invariances = frozenset({"class_permutation"})
    presets: ClassVar = {"cood": {"passes": 30, "measure": "entropy"}}
    display_name = "MC dropout"
    reference = Reference(
        "Dropout as a Bayesian Approximation: Representing Model Uncertainty in Deep Learning",
        "Y. Gal and Z. Ghahramani",
        "ICML",
        2016,
        "https://arxiv.org/abs/1506.02142",
    )

    def __init__(self, passes: int = 30, measure: Literal["entropy", "max"] = "entropy", seed: int = 0) -> None:
        super().__init__()
        check_ints("MCDropout", passes=passes)
        check_choice("MCDropout", "measure", measure, ("entropy", "max"))
        check_seed("MCDropout", seed)
        self.passes = passes
        self.measure = measure
        self.seed = seed
        self.extra_passes = passes

    def _score(self, outputs: Outputs) -> Scores:
        model, images = outputs.model, outputs.require("images")
        assert model is not None  # checked by `score`
        if not any(True for _ in _dropouts(model.network)):
            raise RequirementError(f"{self!r} needs nn.Dropout with p > 0; the network has none")
        contents = outputs.keys or [image.tobytes() for image in images.detach().cpu().float().numpy()]
        hashes = hash_strings(contents).to(images.device)
        total: Tensor | None = None
        for number in range(self.passes):
            with _dropout_on(model.network, hashes + self.seed * 1_000_003 + number * 7_919):
                p = model.logits(images).float().softmax(dim=1).double()
            total = p if total is None else total + p
        assert total is not None  # passes >= 1
        mean = total / self.passes
        return mean.amax(dim=1) if self.measure == "max" else torch.special.xlogy(mean, mean).sum(dim=1)


def _dropouts(network: nn.Module) -> Iterator[nn.Module]:
    return (m for m in network.modules() if isinstance(m, DROPOUTS) and m.p > 0)


@contextmanager
def _dropout_on(network: nn.Module, seeds: Int[Tensor, " batch"]) -> Iterator[None]:
    """Activate dropout layers within the block, with masks that follow from one seed per image."""
    calls = 0

    def drop(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        (x,) = inputs
        p = float(layer.p)  # type: ignore[arg-type]  # of a dropout layer
        if len(x) % len(seeds):
            raise RequirementError(
                f"MCDropout: expected every dropout layer to have the same number of inputs for each image, got"
                f" {len(x)} inputs for {len(seeds)} images"
            )
        # Networks that cut images into windows keep the rows of an image together.
        rows = x.reshape(len(seeds), len(x) // len(seeds), *x.shape[1:])
        whole = not isinstance(layer, nn.Dropout)  # Dropout1d, 2d and 3d drop whole channels
        shape = rows.shape[1:3] if whole else rows.shape[1:]
        kept = _uniform(seeds.to(x.device) + calls * 104_729, shape.numel()).view(len(seeds), *shape) >= p
        kept = kept.view(*kept.shape, *[1] * (rows.ndim - kept.ndim))
        return (rows * kept / (1 - p)).reshape(x.shape).to(x.dtype) if p < 1 else torch.zeros_like(x)

    with ExitStack() as hooks:
        for layer in _dropouts(network):
            hooks.enter_context(layer.register_forward_hook(drop))
        yield


def _uniform(seeds: Int[Tensor, " batch"], size: int) -> Float[Tensor, "batch size"]:
    """Return numbers in [0, 1), hashes of seed and position (the finalizer of splitmix64), equal on every device."""
    x = seeds[:, None] + torch.arange(1, size + 1, device=seeds.device) * -7046029254386353131
    x = (x ^ _shift(x, 30)) * -4658895280553007687
    x = (x ^ _shift(x, 27)) * -7723592293110705685
    return _shift(x ^ _shift(x, 31), 40).float() / 2**24


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift 64-bit numbers logically to the right."""
    shifted: Tensor = (x >> bits) & (2 ** (64 - bits) - 1)
    return shifted
