"""Recorded outputs are scored as they were recorded, whatever the precision of the Trainer."""

from pathlib import Path

import numpy as np
import pytest
import torch

from oodlit.base.network import Head
from oodlit.callbacks import OODDetection
from oodlit.detectors import MSP, Mahalanobis
from oodlit.errors import InvalidArgumentError
from oodlit.recorded import RecordedModule, open_cache
from oodlit.testing.backbones import arithmetic
from tests.callbacks.support import make_trainer


def scores(cache: Path, precision: str) -> np.ndarray:
    detection = OODDetection([MSP(), Mahalanobis()])
    make_trainer(detection, precision=precision).predict(*open_cache(cache), return_predictions=False)
    assert detection.results is not None
    return detection.results.scores[["msp", "mahalanobis"]].to_numpy()


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
def test_other_precisions_have_the_same_scores(whole: Path, precision: str) -> None:
    np.testing.assert_allclose(scores(whole, precision), scores(whole, "32-true"), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("precision", ["bf16-true", "16-true"])
def test_precisions_that_would_round_are_refused(whole: Path, precision: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"precision '{precision}' would round .* pass precision='32-true'"):
        scores(whole, precision)


def test_the_head_computes_in_full_precision() -> None:
    rows, head = arithmetic(5, 16).float(), Head(arithmetic(4, 16).float())
    module = RecordedModule(width=16, num_classes=0, head=head)
    with torch.autocast("cpu", torch.bfloat16):
        logits = module(rows).logits
    assert logits is not None
    assert torch.equal(logits, head(rows))
