"""Values of `tests/golden/metrics.json`: AUROC, and FPR by the interpolated rule, of 23 detectors."""

import json
from pathlib import Path

import numpy as np
import pytest

from oodlit.metrics import auroc, fpr_at_tpr

GOLDEN = Path(__file__).parents[1] / "golden"
METRICS = json.loads((GOLDEN / "metrics.json").read_text())


@pytest.fixture(scope="module")
def scores():
    with np.load(GOLDEN / "scores.npz") as file:
        return {name: file[name] for name in file.files}


@pytest.mark.parametrize("detector", sorted(METRICS))
def test_golden(scores, detector):
    id_scores, ood_scores = scores[f"{detector}/id"], scores[f"{detector}/ood"]
    expected = METRICS[detector]
    assert auroc(id_scores, ood_scores) == pytest.approx(expected["auroc"], abs=1e-12)
    rate = fpr_at_tpr(id_scores, ood_scores, rule="interpolated")
    assert rate == pytest.approx(expected["fpr95_quantile"], abs=1e-12)


def test_every_golden_detector_is_checked(scores):
    assert {name.split("/")[0] for name in scores} == set(METRICS)
