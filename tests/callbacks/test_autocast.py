"""A run computes in the Trainer's precision, whatever `torch.autocast` surrounds it."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from oodlit.callbacks import FeatureCache
from oodlit.datamodules import OODDataModule
from oodlit.detectors import MSP, ODIN, Mahalanobis
from oodlit.results import Results
from tests.callbacks.support import make_module, make_streams, make_trainer, run

DTYPES = (torch.bfloat16, torch.float16)


def results_of(**options: Any) -> Results:
    found = run([MSP(), ODIN(), Mahalanobis()], **options).results
    assert found is not None
    return found


@pytest.fixture(scope="module")
def plain() -> Results:
    return results_of()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_plain_run_stays_in_float32(plain: Results, dtype: torch.dtype) -> None:
    with torch.autocast("cpu", dtype):
        surrounded = results_of()
        assert torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")
    assert surrounded.run.trainer.precision == "32-true"
    assert surrounded.run.backbone.fingerprint == plain.run.backbone.fingerprint
    assert surrounded.scores.equals(plain.scores)


def test_a_mixed_run_keeps_its_precision() -> None:
    alone = results_of(trainer={"precision": "bf16-mixed"})
    with torch.autocast("cpu", torch.float16):
        surrounded = results_of(trainer={"precision": "bf16-mixed"})
    assert surrounded.scores.equals(alone.scores)
    assert not surrounded.scores.equals(results_of().scores)


def test_a_run_that_fails_restores_the_surrounding_autocast() -> None:
    streams = make_streams()
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(ZeroDivisionError):
            run([MSP()], streams=streams, record=lambda: 1 // 0)
        assert torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")


def test_a_cache_is_recorded_in_float32(tmp_path: Path) -> None:
    def record(folder: Path) -> set[bytes]:
        data = OODDataModule(make_streams(), batch_size=16)
        make_trainer(FeatureCache(folder)).predict(make_module(), data, return_predictions=False)
        parts = [load_file(file) for file in folder.glob("rows-*/*.safetensors")]
        return {part[name].numpy().tobytes() for part in parts for name in ("features", "logits")}

    plain = record(tmp_path / "plain")
    with torch.autocast("cpu", torch.bfloat16):
        surrounded = record(tmp_path / "surrounded")
    assert len(plain) == 2 * len(make_streams())
    assert surrounded == plain


@pytest.mark.parametrize(
    "look", [lambda module: module.fingerprint, lambda module: module.probe(torch.rand(2, 3, 8, 8)).signed_features]
)
def test_a_fingerprint_does_not_depend_on_autocast(look: Callable[[Any], object]) -> None:
    torch.manual_seed(0)
    known = look(make_module())
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert look(make_module()) == known
