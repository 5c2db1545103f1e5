"""Warnings and errors for readers: at the user's line, with paths instead of escaped keys."""

import warnings
from pathlib import Path

import pytest
import torch

from oodlit import evaluate_arrays
from oodlit.base.text.readable import readable
from oodlit.base.text.warn import warn, warn_here
from oodlit.detectors import MSP, ViM
from oodlit.errors import DataError
from oodlit.metrics import UndefinedMetricWarning, auroc
from oodlit.results import Finding


def test_a_warning_is_at_the_line_of_the_user_at_any_depth() -> None:
    with pytest.warns(UndefinedMetricWarning) as caught:
        auroc([1.0], [])
    assert {Path(one.filename).parent for one in caught} == {Path(__file__).parent}  # here, or the checks of types
    rows = {"logits": 5 * torch.eye(4).repeat(5, 1)}
    with pytest.warns(UserWarning, match="'vim' is skipped") as caught:  # warned within Lightning's calls
        evaluate_arrays(id=rows, ood={"far": rows}, detectors=[MSP(), ViM()])
    skipped = [one for one in caught if "is skipped" in str(one.message)]
    assert {Path(one.filename).parent for one in skipped} == {Path(__file__).parent}


def test_keys_are_paths_in_errors_and_warnings() -> None:
    assert str(DataError("near/nine/1%2Epng: damaged")) == "near/nine/1.png: damaged"
    with pytest.warns(UserWarning, match="first a/1.png: caf\u00e9"):
        warn("first a/1%2Epng: caf%C3%A9")


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "SLURM_PROCID", "NODE_RANK", "connected"])
def test_what_all_processes_know_is_printed_by_the_first(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    if name == "connected":  # then the rank counts, whatever the launcher wrote
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    else:
        monkeypatch.setenv(name, "1")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn("of the run")
        warn_here("of this process")
        auroc([1.0], [])
    assert [str(one.message) for one in caught] == ["of this process"]
    if name == "connected":
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
        monkeypatch.setenv("LOCAL_RANK", "1")
        with pytest.warns(UserWarning, match="of the run"):
            warn("of the run")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1 images are left out", "1 image is left out"),
        ("far: 1 OOD images, 1 classes, 1 boxes.", "far: 1 OOD image, 1 class, 1 box."),
        ("1 files without an image extension are left out", "1 file without an image extension is left out"),
        ("1 images that repeat others", "1 image that repeats others"),
        ("1 images (first: 'a b.png') are left out", "1 image (first: 'a b.png') is left out"),
        ("1 files of a set (first: 'c') have labels", "1 file of a set (first: 'c') has labels"),
        (
            "1 annotations are marked, 1 confidences are out of range",
            "1 annotation is marked, 1 confidence is out of range",
        ),
        ("1 parameters are here, 1 repeated image ids", "1 parameter is here, 1 repeated image id"),
        ("1 pairs of classes have equal weights", "1 pair of classes has equal weights"),
        (
            "1 folders (first: 'a') have 1 dimensions after 1 attempts",
            "1 folder (first: 'a') has 1 dimension after 1 attempt",
        ),
        ("11 images, 0.1 images, 1,001 images, 2-1 images", "11 images, 0.1 images, 1,001 images, 2-1 images"),
        (
            "1 of 1 images are, 1 of 1,000 files (first: 'a') were",
            "1 of 1 images is, 1 of 1,000 files (first: 'a') was",
        ),
        ("1 of 3 images that repeat others, 1 of 3 images", None),
        ("level 1 classes, 'my 1 images', a/1 images, my 1 images.png", None),
        ("features span 1 dimensions", "features span 1 dimension"),
        ("1 is less, 1 was his", None),
    ],
)
def test_one_is_singular(text: str, shown: str | None) -> None:
    assert readable(text) == (shown or text)
    assert str(DataError(text)) == Finding("chance", text).text == (shown or text)


def test_addresses_and_other_percents_stay() -> None:
    for text in ("https://a.org/x%2Ey.zip", "95 % of 100", "a%0Ab", "msp: fpr95 > 25%"):
        assert readable(text) == text
