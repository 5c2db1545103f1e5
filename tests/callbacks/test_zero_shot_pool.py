"""Zero-shot classifiers through the severity protocol: cosine and MCM, from tiny random towers, against plain loops."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from oodlit import OODModule, Role
from oodlit.backbones.clip import ZeroShotClassifier, text_concepts
from oodlit.callbacks import OODDetection
from oodlit.datamodules import MemorySource, OODDataModule, Sample, Stream, severity_pool
from oodlit.datamodules.severity.pool_streams import PoolSplit
from oodlit.detectors import MSP, Cosine, MaxLogit, RelativeCosine
from oodlit.results import FindingWarning, Results
from tests.callbacks.support import make_trainer

NUM_ID, NUM_POOL, EACH = 3, 8, 12


def tower() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


def text_tower(prompts: list[str]) -> Tensor:
    sums = torch.tensor([float(sum(map(ord, prompt))) for prompt in prompts])
    return torch.sin(sums[:, None] * torch.arange(1.0, 6.0))


def images(seed: int, number: int, level: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return level * torch.rand(number, 3, 8, 8, generator=generator) + torch.rand(3, 1, 1, generator=generator)


@pytest.fixture(scope="module")
def run() -> tuple[Results, ZeroShotClassifier]:
    names = ["tench", "goldfish", "shark"]
    network = ZeroShotClassifier(tower(), text_concepts(names, text_tower))
    inside = [Sample(f"{i}", image, label=i % NUM_ID) for i, image in enumerate(images(0, 30, 1.0))]
    pool = [
        Sample(f"{c}/{i}", image, group=c)
        for c in range(NUM_POOL)
        for i, image in enumerate(images(c + 1, EACH, 0.2 * c))
    ]
    streams = [
        Stream("val", Role.ID, MemorySource(inside), tuple(names)),
        severity_pool(
            Stream("others", Role.OOD, MemorySource(pool), tuple(f"class {c}" for c in range(NUM_POOL))), test_share=0.4
        ),
    ]
    detectors = {
        "cosine": Cosine.preset("zero-shot"),
        "mcm": RelativeCosine.preset("mcm"),
        "msp": MSP(),
        "max_logit": MaxLogit(),
    }
    detection = OODDetection(detectors)
    module = OODModule(network, head="classifier", transform=nn.Identity(), name="tiny CLIP")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FindingWarning)  # random towers classify nothing
        make_trainer(detection).predict(module, OODDataModule(streams, batch_size=7), return_predictions=False)
    assert detection.results is not None
    return detection.results, network


@pytest.mark.parametrize("name", ["cosine", "mcm"])
def test_severities_and_levels_by_plain_loops(run: tuple[Results, ZeroShotClassifier], name: str) -> None:
    results, network = run
    found = results.severities("others", name)
    parts = PoolSplit(0.4)

    def confidence(batch: Tensor) -> np.ndarray:
        with torch.no_grad():
            embedded = network.image_tower(batch).double()
        embedded = embedded / embedded.norm(dim=1, keepdim=True)
        cosines = (embedded @ (network.classifier.weight.detach().double() / 100).T).numpy()
        if name == "cosine":
            return cosines.max(axis=1)
        return np.array([max(math.exp(z) for z in row) / sum(math.exp(z) for z in row) for row in cosines])

    inside = confidence(images(0, 30, 1.0))
    severities, tests = [], []
    for c in range(NUM_POOL):
        values = confidence(images(c + 1, EACH, 0.2 * c))
        is_test = np.array([str(parts(f"{c}/{i}")) == "test" for i in range(EACH)])
        severities.append(values[~is_test].mean())
        tests.append(values[is_test])
    order = np.argsort(severities, kind="stable")
    assert found["ood_class"].tolist() == [f"class {c}" for c in order]
    np.testing.assert_allclose(found["severity"], np.array(severities)[order], rtol=1e-5)
    windows = NUM_POOL - NUM_ID + 1
    for level in range(11):
        start = min(level * windows // 10, windows - 1)
        outside = np.concatenate([tests[c] for c in order[start : start + NUM_ID]])
        wins = np.mean([(a > b) + (a == b) / 2 for a in inside for b in outside])
        assert results.value("auroc", dataset="others", detector=name, ood_class=f"s{level}") == pytest.approx(
            wins, abs=1e-9
        )
    assert set(found["confidence"]) == {"score" if name == "cosine" else "exp(score)"}


def test_cosine_and_maximum_logit_sort_alike(run: tuple[Results, ZeroShotClassifier]) -> None:
    """The published max-logit rows of CLIP are cosines: the logits are 100 times as large."""
    results, _ = run
    cosine, logit = (results.severities("others", name) for name in ("cosine", "max_logit"))
    assert cosine["ood_class"].tolist() == logit["ood_class"].tolist()
    np.testing.assert_allclose(100 * cosine["severity"], logit["severity"], rtol=1e-4)
