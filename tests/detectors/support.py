"""What the detector tests share: goldens, small problems, ways to cut a training set."""

import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch

from oodlit.base.words.embeddings import WordEmbeddings
from oodlit.outputs import Head, Outputs

_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []
GOLDEN = Path(__file__).parents[1] / "golden"
NEGATIVE_WORDS = {"negatives": str(GOLDEN / "negatives.safetensors"), "groups": 10}
"""Settings of detectors with negative words: 480 random rows with 16 features, as in `oodlit.testing.problems`."""


def negative_words(file: Path, width: int) -> dict[str, object]:
    """Write random rows to a file; settings of a detector that reads them."""
    rows = torch.randn(90, width, generator=torch.Generator().manual_seed(0))
    WordEmbeddings(rows, torch.arange(90) >= 60, [f"word {i}" for i in range(90)]).save(file)
    return {"negatives": str(file), "groups": 4, "temperature": 0.1}


@cache
def narrow_words() -> dict[str, object]:
    """Settings of a detector that reads words of 6 features; the folder lives as long as the process."""
    _FOLDERS.append(tempfile.TemporaryDirectory())
    return negative_words(Path(_FOLDERS[-1].name) / "words.safetensors", width=6)


@cache
def golden_inputs() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "inputs.npz") as file:
        return dict(file)


@cache
def golden_scores() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "scores.npz") as file:
        return dict(file)


@cache
def golden_head() -> Head:
    data = golden_inputs()
    return Head(torch.from_numpy(data["weight"]).double(), torch.from_numpy(data["bias"]).double())


@cache
def golden_outputs(part: str) -> Outputs:
    """Outputs in float64, as the goldens were made: logits follow from features and head."""
    data = golden_inputs()
    features = torch.from_numpy(data[f"{part}_features"]).double()
    labels = torch.from_numpy(data[f"{part}_labels"]) if f"{part}_labels" in data else None
    return Outputs(golden_head()(features), features, labels, keys=[f"{part}/{i}" for i in range(len(features))])


def cut(outputs: Outputs, size: int, order: torch.Tensor | None = None) -> Iterator[Outputs]:
    """Batches of `size`, after a permutation."""
    shuffled = outputs if order is None else outputs.select(order)
    for start in range(0, len(outputs), size):
        yield shuffled.select(slice(start, start + size))


def permutation(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def small_problem(
    *,
    n: int = 200,
    width: int = 6,
    classes: int = 4,
    seed: int = 0,
    signed: bool = True,
    dtype: torch.dtype = torch.float64,
) -> tuple[Outputs, Head]:
    """Random labelled training outputs that belong to a random head."""
    features = normal(n, width, seed=seed).to(dtype)
    features = features if signed else features.abs()
    head = Head(normal(classes, width, seed=seed + 1).to(dtype), normal(classes, seed=seed + 2).to(dtype))
    labels = torch.arange(n) % classes
    return Outputs(head(features), features, labels, keys=[f"train/{i}" for i in range(n)]), head


def relative_error(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(((a - b).abs() / b.abs().clamp(min=1e-300)).max())


def as_outputs(rows: Sequence[Sequence[float]]) -> Outputs:
    return Outputs(features=torch.tensor(rows))
