"""The board of OpenOOD beside a run of its benchmark: means over sets, full spectrum, and reasons."""

import pandas as pd
import pytest

from oodlit.datamodules.benchmarks.tables import describe_benchmark
from oodlit.results import DatasetInfo, Results
from oodlit.results.published import OPENOOD, published_table
from oodlit.roles import Role
from tests.results.published_support import ninco_run

ABOUT = describe_benchmark("openood-v1.5")
SHIFTED = {"imagenet_v2": 10_000, "imagenet_c": 10_000, "imagenet_r": 30_000}


@pytest.fixture(scope="module")
def board() -> Results:
    """A run of the whole benchmark with torchvision's ResNet-50."""
    ood = {one.name: one.images for one in ABOUT.sets if one.name not in ("ninco", *SHIFTED)}
    weights = {"model": "resnet50.tv_in1k", "img_size": 224, "crop_pct": 0.875}
    run = ninco_run(("msp",), n_id=45_000, published_as=weights, ood=ood | SHIFTED)
    infos = [DatasetInfo(i.name, Role.SHIFT if i.name in SHIFTED else i.role, i.class_names) for i in run.datasets]
    known = run.scores["dataset"].isin(SHIFTED)
    scores = run.scores.assign(label=run.scores["label"].mask(known, 1))
    return Results.from_scores(scores, infos, ["msp"], run=run.run, aggregates=ABOUT.aggregates, bootstrap=1)


def row(frame: pd.DataFrame, dataset: str) -> pd.Series:
    found = frame[frame["dataset"] == dataset]
    assert len(found) == 1
    return found.iloc[0]


def test_every_figure_of_the_board_is_compared(board: Results) -> None:
    frame = board.against("openood")
    assert frame["model"].eq("ResNet50").all()
    assert frame["reason"].eq("").all()
    assert set(frame["dataset"]) == {
        prefix + name for prefix in ("", "full-spectrum ") for name in OPENOOD.protocol.sets if " " not in name
    }
    for name in ("near", "far"):
        for printed, metric in ((name, "auroc"), (f"full-spectrum {name}", "fs_auroc")):
            found, own = row(frame, printed), board.row(metric, dataset=name, detector="msp")
            assert (found["ours"], found["ci_low"], found["ci_high"]) == (own["value"], own["ci_low"], own["ci_high"])
            published = OPENOOD.value("MSP", printed, "auroc", model="ResNet50")
            assert found["difference"] == found["ours"] - published
    assert row(frame, "full-spectrum id")["ours"] == board.value("fs_accuracy", dataset="imagenet_val")


@pytest.mark.parametrize("left_out", ["imagenet_r", "ssb_hard"])
def test_another_spectrum_and_a_missing_set_are_reasons(board: Results, left_out: str) -> None:
    infos = [info for info in board.datasets if info.name != left_out]
    scores = board.scores[board.scores["dataset"] != left_out]
    frame = Results.from_scores(scores, infos, ["msp"], run=board.run, bootstrap=0).against("openood-v1.5")
    if left_out == "imagenet_r":
        full = frame[frame["dataset"].str.startswith("full")]
        assert full["reason"].str.endswith("as ID, but this run counts imagenet_v2, imagenet_c").all()
        assert full["difference"].isna().all()
        assert row(frame, "near")["reason"] == ""
    else:
        assert "does not include ssb_hard" in row(frame, "near")["reason"]
        assert row(frame, "far")["reason"] == ""


def test_a_benchmark_is_a_name_of_its_table() -> None:
    assert published_table("openood-v1.5") is published_table("openood") is OPENOOD
