"""A run beside published figures: a difference only between values of one rule, the reason everywhere else."""

import math
import re

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oodlit.datamodules.sets.ninco import NINCO_CLASSES
from oodlit.errors import InvalidArgumentError, UnknownNameError
from oodlit.results import DatasetInfo, Results
from oodlit.results.comparing.against import COLUMNS, NO_MODEL, rank_among
from oodlit.results.published import NINCO, NINCO_FIRST_RELEASE, OPENOOD, TIMM, published_tables
from oodlit.results.published.table import PublishedTable
from oodlit.roles import Role
from tests.report.problems import make_results
from tests.results.published_support import RESNET50, ninco_run

shares = st.floats(0, 1)
NEAR_AND_FAR = {"ssb_hard": 49_000, "inaturalist": 10_000, "textures": 5_160, "openimage_o": 15_869}


@pytest.fixture(scope="module")
def results() -> Results:
    return ninco_run()


UNKNOWN_SIZES = {"human_centric": {"textures", "imagenet_c"}}


def row(frame: pd.DataFrame, **place: str) -> pd.Series:
    for name, value in place.items():
        frame = frame[frame[name] == value]
    assert len(frame) == 1
    return frame.iloc[0]


@given(value=shares, others=st.lists(shares, min_size=1), better=st.sampled_from(["lower", "higher"]))
def test_a_standing_is_counted(value: float, others: list[float], better: str) -> None:
    found = rank_among(value, others, better=better)
    above = sum(other < value if better == "lower" else other > value for other in others)
    equal = others.count(value)
    assert found == (above + 1, len(others) + 1, pytest.approx((len(others) - above - equal) / len(others)))
    mirrored = rank_among(
        1 - value, [1 - other for other in others], better="lower" if better == "higher" else "higher"
    )
    assert mirrored.of == found.of
    assert 1 <= found.rank <= found.of


@pytest.mark.parametrize(
    ("value", "others", "better"),
    [(0.5, [], "lower"), (math.nan, [0.1], "lower"), (0.5, [0.1, math.nan], "lower"), (0.5, [0.1], "")],
)
def test_a_standing_needs_numbers_and_a_direction(value: float, others: list[float], better: str) -> None:
    with pytest.raises(
        InvalidArgumentError, match=rf"no NaN, and better='lower' .* published={re.escape(str(others))} and"
    ):
        rank_among(value, others, better=better)


def test_the_models_own_figure_is_laid_beside_ours(results: Results) -> None:
    frame = results.against("ninco")
    assert list(frame.columns) == list(COLUMNS)
    assert set(frame["detector"]) == {"msp", "vim"}  # "mine" is nobody's detector
    assert set(frame["model"]) == {"ResNet50"}
    for detector, printed in (("msp", "MSP"), ("vim", "ViM")):
        found = row(frame, detector=detector, metric="mean_auroc")
        theirs = NINCO.value(printed, "ninco", "mean_auroc", model="ResNet50")
        assert theirs is not None
        assert found["ours"] == results.value("mean_auroc", dataset="ninco", detector=detector)
        assert found["published"] == theirs
        assert found["difference"] == pytest.approx(found["ours"] - theirs)
        assert found["reason"] == ""
        others = [f.value for f in NINCO.figures() if f[1:4] == (printed, "ninco", "mean_auroc") and f[0] != "ResNet50"]
        assert (found["rank"], found["of"]) == (sum(o > found["ours"] for o in others) + 1, len(others) + 1)


@pytest.mark.parametrize("classes", [None, ["waffles", "amphiuma_means", "s_sky"]])
def test_the_threshold_is_found_by_the_rule_of_the_table(classes: list[str] | None) -> None:
    """Second source: the whole evaluation again with that rule."""
    few = ninco_run(("msp", "vim"), n_id=990, classes={"ninco": classes} if classes else {})
    again = few.recompute(rule="interpolated")
    frame = few.against("ninco", classes=True)
    rates = frame[frame["metric"].str.contains("fpr")]
    assert len(rates) == 2 * (1 + (len(classes) if classes else 64))
    for _, found in rates.iterrows():
        place = {"dataset": found["dataset"], "detector": found["detector"], "ood_class": found["ood_class"]}
        assert found["ours"] == pytest.approx(again.value(found["metric"], **place), abs=1e-12)
        assert math.isnan(found["ci_low"])
    assert not few.table["value"].equals(again.table["value"])
    with_intervals = again.against("ninco", classes=True)
    assert with_intervals.loc[with_intervals["ood_class"] == "waffles", "ci_low"].notna().all()


@pytest.mark.parametrize(
    ("table", "change", "metric", "reason"),
    [
        ("ninco", {"tpr": 0.9}, "mean_fpr95", "the table has fpr95, but this run has fpr90"),
        (
            "ninco",
            {"classes": {"ninco": ["waffles", "s_sky"]}},
            "mean_auroc",
            "ninco has 64 classes in the table, 2 in this run",
        ),
        (
            "ninco",
            {},
            "mean_aupr_s",
            "the table does not state whether the value is a mean over classes or over all images",
        ),
        ("ninco_first_release", {}, "mean_auroc", "ninco has 46 classes in the table, 64 in this run"),
        ("mahalanobis_plus_plus", {}, "fpr95", "the table does not state whether"),
        ("openood_imagenet1k", {}, "auroc", "ssb_hard, ninco; this run does not include ssb_hard"),
    ],
)
def test_unlike_rules_are_named_and_no_difference_is_given(
    results: Results, table: str, change: dict[str, object], metric: str, reason: str
) -> None:
    changed = results.recompute(**change) if change else results
    frame = changed.against(table)
    found = frame[frame["metric"] == metric]
    assert len(found) > 0
    assert found["reason"].str.contains(reason, regex=False).all()
    assert found["difference"].isna().all()
    assert found["rank"].isna().all()


def test_other_numbers_of_images_are_no_comparison() -> None:
    frame = ninco_run(("msp",), n_id=900).against("ninco")
    assert row(frame, metric="mean_auroc")["reason"] == "imagenet_val has 50,000 images in the table, 900 in this run"
    assert frame["difference"].isna().all()


def test_sets_of_others_that_have_the_name_are_no_comparison() -> None:
    frame = ninco_run(("msp",), n_id=45_000, ood=NEAR_AND_FAR | {"textures": 40}).against("openood_imagenet1k")
    assert row(frame, dataset="near")["reason"] == NO_MODEL
    assert row(frame, dataset="far")["reason"] == "textures has 5,160 images in the table, 40 in this run"
    assert frame["rank"].notna().tolist() == (frame["dataset"] != "far").tolist()
    ours = ninco_run(("msp",), n_id=50_000, ood={"textures": 5_640, "sun": 10_000})
    frame = ours.against("human_centric", model="ViT-B16")
    assert set(frame.loc[frame["dataset"] == "textures", "reason"]) == {
        "the table does not state the number of images of textures"
    }
    assert frame.loc[frame["dataset"] == "textures", ["difference", "rank"]].isna().all(axis=None)


def test_another_id_set_is_no_comparison(results: Results) -> None:
    mine = results.scores.assign(dataset=results.scores["dataset"].replace({"imagenet_val": "photos"}))
    infos = [DatasetInfo("photos", Role.ID), results.dataset("ninco")]
    frame = Results.from_scores(mine, infos, results.detectors, run=results.run, bootstrap=0).against("ninco")
    assert (
        row(frame, detector="msp", metric="mean_auroc")["reason"]
        == "the ID set is imagenet_val in the table, but photos in this run"
    )
    assert frame[["difference", "rank", "quantile"]].isna().all(axis=None)


@pytest.mark.parametrize("table", published_tables().values(), ids=published_tables())
def test_every_set_that_is_compared_as_a_whole_has_a_known_size(table: PublishedTable) -> None:
    """Else no figure of it would ever stand beside ours, which should be said where the table is described."""
    if table.protocol.mean != "images":
        return
    named = {figure.dataset for figure in table.figures()}
    sets = {name for dataset in named for name in table.protocol.sets_of(dataset)}
    assert sets - table.protocol.images.keys() == UNKNOWN_SIZES.get(table.name, set())


def test_the_46_classes_of_the_first_release_differ_in_one(results: Results) -> None:
    first = [f.ood_class for f in NINCO_FIRST_RELEASE.class_figures() if f.dataset == "ninco"]
    some = results.recompute(classes={"ninco": list(dict.fromkeys(first))})
    frame = some.against("ninco_first_release", model="ResNet50", classes=True)
    means = frame[frame["ood_class"] == ""]
    assert set(means["reason"]) == {"haemulon_sciurus has 99 images in the table, 96 in this run"}
    assert means["difference"].isna().all()
    found = row(frame, detector="msp", ood_class="waffles", metric="auroc")
    theirs = [
        f.value
        for f in NINCO_FIRST_RELEASE.class_figures()
        if f[:4] == ("ResNet50", "MSP", "ninco", "auroc") and f.ood_class == "waffles"
    ]
    assert [found["published"]] == theirs
    assert found["difference"] == pytest.approx(found["ours"] - theirs[0])
    assert found["of"] == 29


def test_a_network_that_is_not_in_the_table_has_a_place_and_no_difference() -> None:
    for known in (None, RESNET50 | {"img_size": 288, "crop_pct": 1.0}):
        frame = ninco_run(("msp",), published_as=known).against("ninco")
        found = row(frame, metric="mean_auroc")
        assert (found["model"], found["reason"], found["of"]) == ("", NO_MODEL, 27)
        assert math.isnan(found["published"])
        assert math.isnan(found["difference"])
    named = row(ninco_run(("msp",), published_as=None).against("ninco", model="BiT-s"), metric="mean_auroc")
    assert named["published"] == NINCO.value("MSP", "ninco", "mean_auroc", model="BiT-s")


def test_openood_pools_each_set_and_takes_the_mean_over_sets() -> None:
    results = ninco_run(("msp",), n_id=45_000, ood=NEAR_AND_FAR)
    frame = results.against("openood_imagenet1k", model="ResNet50")
    near = row(frame, dataset="near", detector="msp")
    parts = [
        results.value("pooled_auroc", dataset="ninco", detector="msp"),
        results.value("auroc", dataset="ssb_hard", detector="msp"),
    ]
    assert near["ours"] == pytest.approx(sum(parts) / 2)
    assert near["published"] == OPENOOD.value("MSP", "near", "auroc", model="ResNet50") == 0.7602
    assert near["reason"] == ""
    far = row(frame, dataset="far", detector="msp")
    parts = [results.value("auroc", dataset=d, detector="msp") for d in ("inaturalist", "textures", "openimage_o")]
    assert far["ours"] == pytest.approx(sum(parts) / 3)
    assert row(frame, dataset="id")["difference"] == pytest.approx(0.8 - 0.7618)
    assert not frame["dataset"].str.startswith("full").any()


def test_an_accuracy_stands_among_timms(results: Results) -> None:
    found = row(results.against("timm"), dataset="imagenet_val")
    assert (found["detector"], found["ours"], found["published"]) == ("model", 0.8, 0.80382)
    others = [f.value for f in TIMM.figures() if f.dataset == "imagenet_val"]
    assert (found["rank"], found["of"]) == (sum(o > 0.8 for o in others), len(others))  # without itself, with ours
    assert found["quantile"] == pytest.approx(sum(o < 0.8 for o in others) / (len(others) - 1))


def test_a_detector_is_known_by_its_class_whatever_its_name(results: Results) -> None:
    settings = {"mine": {"class_path": "oodlit.detectors.RelativeMahalanobis"}}
    named = Results(results.scores, results.table, results.run.with_entries({"detector_settings": settings}))
    found = row(named.against("ninco"), detector="mine", metric="mean_auroc")
    assert found["printed_as"] == "RMahalanobis"


def test_a_run_of_other_sets_has_no_row_and_the_same_columns(results: Results) -> None:
    frame = make_results().against("ninco", classes=True)
    assert len(frame) == 0
    assert re.fullmatch("ninco has figures for .*ninco.*, but this run has val, near, .*", frame.attrs["left_out"]), (
        frame.attrs
    )
    assert results.against("ninco").attrs["left_out"] == ""
    pd.testing.assert_series_equal(frame.dtypes, results.against("ninco").dtypes)


def test_a_run_of_other_detectors_is_told_which_there_are() -> None:
    frame = ninco_run(("mine",), n_id=900).against("ninco")
    assert len(frame) == 0
    assert re.fullmatch("ninco has figures for .*MSP.*, but this run has mine", frame.attrs["left_out"])


def test_unknown_names_are_errors(results: Results) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'ninco'"):
        results.against("ninko")
    with pytest.raises(UnknownNameError, match="did you mean 'ResNet50'"):
        results.against("ninco", model="ResNet5")


def test_the_classes_of_the_paper_are_all_there() -> None:
    assert {f.n for f in NINCO.class_figures() if f.dataset == "ninco_unit_tests"} == {400}
    assert len(NINCO_CLASSES) == len({f.ood_class for f in NINCO.class_figures() if f.dataset == "ninco"})
