"""Intervals of means over small classes, or with few ID images: edges, and their coverage by simulation (slow)."""

import math
import zlib

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from oodlit.metrics import auroc, auroc_interval, wilson_interval
from oodlit.metrics.uncertainty.bootstrap import percentile_interval, stratified_bootstrap
from oodlit.metrics.uncertainty.small_classes import mean_auroc_interval, mean_fpr_interval, mean_share_interval
from oodlit.results import DatasetInfo, Results
from oodlit.roles import Role

INFOS = [DatasetInfo("train", Role.TRAIN), DatasetInfo("val", Role.ID)]
MEANS = ("mean_fpr95", "mean_auroc", "mean_der95")


def table_of(sizes, n_id, *, shift=1.5, seed=0, bootstrap=200):
    """The results of one detector whose scores are normal, with classes of these sizes."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(len(sizes)), sizes)
    inside = {"key": [f"{i}" for i in range(2 * n_id)], "dataset": ["train"] * n_id + ["val"] * n_id, "group": -1}
    inside |= {"label": 0, "prediction": np.arange(2 * n_id) % n_id == 0, "msp": rng.normal(size=2 * n_id)}
    outside = {"key": [f"far/{i}" for i in range(len(groups))], "dataset": "far", "group": groups, "label": -1}
    outside |= {"prediction": 0, "msp": rng.normal(-shift, size=len(groups))}
    frame = pd.concat([pd.DataFrame(inside), pd.DataFrame(outside)], ignore_index=True)
    infos = [*INFOS, DatasetInfo("far", Role.OOD, tuple(f"c{i}" for i in range(len(sizes))))]
    return Results.from_scores(frame, infos, ["msp"], bootstrap=bootstrap)


def row_of(results, metric):
    table = results.table
    return table[(table["dataset"] == "far") & (table["ood_class"] == "") & (table["metric"] == metric)].iloc[0]


def test_large_classes_have_the_interval_of_the_bootstrap():
    """Sizes at the limits: 20 images per class and 100 ID images."""
    results = table_of([20, 25], 100)
    scores = results.scores
    val, far = (scores[scores["dataset"] == name] for name in ("val", "far"))
    replicates = stratified_bootstrap(
        val["msp"].to_numpy()[None],
        far["msp"].to_numpy()[None],
        far["group"].to_numpy(),
        repetitions=200,
        seed=zlib.crc32(b"far"),
    )
    for metric, kind in (("mean_fpr95", "fpr"), ("mean_auroc", "auroc")):
        row, ends = row_of(results, metric), percentile_interval(replicates.mean(kind))
        assert (row["ci_low"], row["ci_high"]) == (float(ends[0][0]), float(ends[1][0]))


@pytest.mark.parametrize(("sizes", "n_id"), [([5, 5, 5], 500), ([19, 40], 500), ([40, 40], 60), ([2, 100], 30)])
def test_small_classes_and_few_id_images_have_wider_intervals(sizes, n_id):
    for seed in range(3):
        results = table_of(sizes, n_id, seed=seed)
        for metric in (*MEANS, "pooled_fpr95", "pooled_auroc"):
            row = row_of(results, metric)
            assert 0 <= row["ci_low"] <= row["value"] <= row["ci_high"] <= 1
            assert row["ci_high"] - row["ci_low"] > 0.02, metric


def test_a_class_of_one_image_among_others_leaves_means_without_interval():
    results = table_of([1, 30, 30], 200)
    for metric in MEANS:
        assert math.isnan(row_of(results, metric)["ci_low"]), metric
        assert not math.isnan(row_of(results, metric)["value"])
    assert not math.isnan(row_of(results, "pooled_auroc")["ci_low"])
    (note,) = (note for note in results.run.notes if "have no interval" in note)
    assert "such classes: 1 of 3, first: 'c0')" in note


def test_classes_of_one_image_each_are_a_sample_of_classes():
    """The mean over the classes is then the share of the images, with the interval of one class of that size."""
    results = table_of([1] * 20, 200)
    for metric in ("fpr95", "auroc"):
        one, all_of_them = row_of(results, f"mean_{metric}"), row_of(results, f"pooled_{metric}")
        assert (one["ci_low"], one["ci_high"]) == (all_of_them["ci_low"], all_of_them["ci_high"])
    row = row_of(results, "mean_der95")
    expected = wilson_interval(round(20 * row["value"]), 20)
    np.testing.assert_allclose((row["ci_low"], row["ci_high"]), expected, atol=1e-12)
    assert any("sample of all possible classes" in note for note in results.run.notes)


def test_one_class_and_one_image_has_no_interval():
    assert math.isnan(row_of(table_of([1], 200), "mean_auroc")["ci_low"])


@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=12),
    st.lists(st.integers(-3, 3), min_size=4, max_size=12),
    st.integers(1, 2),
)
def test_intervals_contain_the_value_and_stay_in_range(inside, ood, classes):
    id_scores, ood_scores = np.array(inside, dtype=float), np.array(ood, dtype=float)
    groups = np.arange(len(ood)) % classes
    low, high = mean_auroc_interval(id_scores, ood_scores, groups)
    value = np.mean([auroc(id_scores, ood_scores[groups == c]) for c in range(classes)])
    assert 0 <= low <= value + 1e-12
    assert value - 1e-12 <= high <= 1
    low, high = mean_fpr_interval(id_scores, ood_scores, groups)
    assert 0 <= low <= high <= 1


def test_one_large_class_has_nearly_the_interval_of_a_class():
    rng = np.random.default_rng(0)
    id_scores, ood_scores = rng.normal(size=500), rng.normal(-1, size=400)
    found = mean_auroc_interval(id_scores, ood_scores, np.zeros(400, dtype=int))
    np.testing.assert_allclose(found, auroc_interval(id_scores, ood_scores), atol=1e-4)
    np.testing.assert_allclose(
        mean_share_interval(np.array([0.1]), np.array([30]), np.ones(1), norm.isf(0.025)), wilson_interval(3, 30)
    )


def test_scores_that_are_infinite_or_huge():
    inside, ood = np.array([-np.inf, 1.0, 2.0, np.inf]), np.array([-np.inf, 0.0, 3.0, np.inf])
    for scale in (inside, np.array([-1e300, 1e300, 1e300, 1e300])):
        low, high = mean_fpr_interval(scale, ood, np.array([0, 0, 1, 1]))
        assert 0 <= low <= high <= 1


# --- coverage: run `pytest -m slow -s tests/metrics/test_small_classes.py`; the table is in docs/uncertainty.md


def coverage(n_id, sizes, shift, simulations):
    """Shares of simulations whose intervals contain the true mean FPR and mean AUROC; scores are normal."""
    rng = np.random.default_rng(0)
    single = max(sizes) == 1
    groups = np.zeros(len(sizes), dtype=int) if single else np.repeat(np.arange(len(sizes)), sizes)
    means = -shift + (np.zeros(1) if single else np.linspace(-0.5, 0.5, len(sizes)))
    truth = {"fpr": norm.sf(norm.ppf(0.05) - means).mean(), "auroc": norm.cdf(-means / math.sqrt(2)).mean()}
    intervals = {"fpr": mean_fpr_interval, "auroc": mean_auroc_interval}
    covered = dict.fromkeys(truth, 0)
    for _ in range(simulations):
        id_scores, ood_scores = rng.normal(size=n_id), rng.normal(size=len(groups)) + means[groups]
        for name, interval in intervals.items():
            low, high = interval(id_scores, ood_scores, groups)
            covered[name] += low <= truth[name] <= high
    return {name: count / simulations for name, count in covered.items()}, truth


@pytest.mark.slow
@pytest.mark.parametrize("n_id", [30, 60, 500])
@pytest.mark.parametrize("sizes", [[5] * 3, [5, 5, 100], [1] * 20, [30] * 3, [2] * 10, [10] * 40], ids=str)
def test_coverage_of_means_over_small_classes(sizes, n_id):
    if n_id == 500 and min(sizes) >= 20:
        pytest.skip("these have the interval of the bootstrap")
    for shift in (1.0, 2.5, 4.0):
        found, truth = coverage(n_id, sizes, shift, simulations=2000)
        print(
            f"n_id={n_id} sizes={sizes if len(sizes) < 4 else (len(sizes), sizes[0])}: FPR ({truth['fpr']:.3f})"
            f" {100 * found['fpr']:.1f} %, AUROC ({truth['auroc']:.3f}) {100 * found['auroc']:.1f} %",
            flush=True,
        )
        assert min(found.values()) >= 0.93 - 2 * 0.0057  # two standard errors of 2,000 simulations
