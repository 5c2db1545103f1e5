"""Zero-shot classifiers from small towers, and the detectors that read their concepts."""

import importlib.util
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from oodlit.backbones.clip import ZeroShotClassifier, class_prompts, from_open_clip, text_concepts
from oodlit.detectors import Cosine, RelativeCosine, fit
from oodlit.errors import InvalidArgumentError, MissingExtraError
from oodlit.module import OODModule

NAMES = ["tench", "goldfish", "great white shark"]


def text_tower(prompts: list[str]) -> Tensor:
    """Embeddings of fixed arithmetic: sines of the sum of the letters."""
    sums = torch.tensor([sum(map(ord, p)) for p in prompts], dtype=torch.float32)
    return torch.sin(sums[:, None] * torch.arange(1.0, 6.0)) * (1 + sums[:, None] / 1000)


def image_tower() -> nn.Module:
    tower = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    with torch.no_grad():
        for p in tower.parameters():
            p.copy_(torch.sin(torch.arange(1.0, p.numel() + 1)).view(p.shape))
    return tower


def images(n: int = 6) -> Tensor:
    return (
        torch.sin(torch.arange(n * 3 * 8 * 8).float()).view(n, 3, 8, 8) * torch.arange(1.0, n + 1)[:, None, None, None]
    )


def test_prompts() -> None:
    assert class_prompts(NAMES)[2] == "a photo of a great white shark"
    assert class_prompts(["{x}"], "{class}!") == ["{x}!"]
    for names, template in (([], "{class}"), ([" "], "{class}"), (["a"], "a photo")):
        with pytest.raises(InvalidArgumentError, match="class_prompts"):
            class_prompts(names, template)


def test_concepts_are_means_of_unit_embeddings() -> None:
    templates = ("a photo of a {class}", "a sketch of a {class}")
    parts = [text_tower(class_prompts(NAMES, t)).numpy() for t in templates]
    mean = sum(p / np.linalg.norm(p, axis=1, keepdims=True) for p in parts)
    expected = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    for size in (1, 2, 256):
        found = text_concepts(NAMES, text_tower, templates=templates, batch_size=size)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    with pytest.raises(InvalidArgumentError, match="at least one template"):
        text_concepts(NAMES, text_tower, templates=())


def test_zero_shot_cosine_and_mcm_through_the_module() -> None:
    concepts = text_concepts(NAMES, text_tower)
    module = OODModule(ZeroShotClassifier(image_tower(), concepts), head="classifier", transform=lambda image: image)
    with torch.no_grad():
        outputs = module(images())
        embedded = image_tower()(images()).numpy()
    cosines = embedded / np.linalg.norm(embedded, axis=1, keepdims=True) @ concepts.numpy().T
    np.testing.assert_allclose(outputs.logits, 100 * cosines, rtol=1e-4, atol=1e-4)
    detectors = [Cosine.preset("zero-shot"), RelativeCosine.preset("mcm")]
    fit(detectors, iter(()), module.head)  # no training images
    np.testing.assert_allclose(detectors[0].score(outputs), cosines.max(axis=1), rtol=1e-5)
    softmax = np.exp(cosines) / np.exp(cosines).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(detectors[1].score(outputs).exp(), softmax.max(axis=1), rtol=1e-5)


@pytest.mark.parametrize(
    ("concepts", "scale"), [(torch.ones(3), 1.0), (torch.ones(0, 3), 1.0), (torch.ones(2, 3), 0.0)]
)
def test_bad_arguments(concepts: Tensor, scale: float) -> None:
    with pytest.raises((InvalidArgumentError, TypeError), match=r"ZeroShotClassifier|concepts"):
        ZeroShotClassifier(nn.Identity(), concepts, scale=scale)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([0.0, 0.0], r"finite, nonzero concept .* infinite concept for 1 of 3 classes \(first class indices: 1\)"),
        ([float("nan"), 1.0], r"finite, nonzero concept .* infinite concept for 1 of 3 classes"),
        ([float("inf"), 1.0], r"finite, nonzero concept .* infinite concept for 1 of 3 classes"),
    ],
)
def test_concepts_without_direction_are_refused(row: list[float], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        ZeroShotClassifier(nn.Flatten(), torch.tensor([[1.0, 0.0], row, [0.0, 1e-30]]))


@pytest.mark.parametrize(
    ("tower", "message"),
    [
        (lambda prompts: text_tower(prompts)[:1], r"text tower: .*\(3, features\), .*\(1, 5\)"),
        (lambda prompts: text_tower(prompts).mean(dim=0), r"text tower: .*\(3, features\), .*\(5,\)"),
        (lambda prompts: text_tower(prompts)[:, None], r"text tower: .*\(3, features\), .*\(3, 1, 5\)"),
        (lambda prompts: SimpleNamespace(pooler_output=text_tower(prompts)), "text tower: .*SimpleNamespace"),
        (lambda prompts: text_tower(prompts).numpy(), "text tower: .*ndarray"),
    ],
)
def test_what_a_text_tower_must_return(tower: Callable[[list[str]], Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        text_concepts(NAMES, tower)


class Wrapped(nn.Module):
    """An image tower that returns more than embeddings."""

    def forward(self, images: Tensor) -> SimpleNamespace:
        return SimpleNamespace(pooler_output=images.flatten(1))


@pytest.mark.parametrize(
    ("tower", "message"),
    [
        (nn.Flatten(), "concepts have 5 .* image tower returns 192"),
        (nn.Conv2d(3, 5, 3), r"image tower: .*\(6, features\), .*\(6, 5, 6, 6\)"),
        (Wrapped(), r"image tower: .*\(6, features\), .*SimpleNamespace"),
    ],
)
def test_towers_of_different_spaces_are_named_at_the_first_images(tower: nn.Module, message: str) -> None:
    network = ZeroShotClassifier(tower, text_concepts(NAMES, text_tower))
    with pytest.raises(InvalidArgumentError, match=message):
        network(images())
    with pytest.raises(InvalidArgumentError, match=message):  # and again: nothing was learnt
        network(images())


@pytest.mark.skipif(importlib.util.find_spec("open_clip") is not None, reason="open_clip is installed")
def test_missing_extra_is_named() -> None:
    with pytest.raises(MissingExtraError, match=r"pip install 'oodlit\[clip\]'"):
        from_open_clip("ViT-B-16", NAMES)
