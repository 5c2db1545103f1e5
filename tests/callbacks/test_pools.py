"""A pool in a run: the same levels from any order and any number of processes, kept on disk, refused when unlike."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from oodlit import Results, Role
from oodlit.datamodules import severity_pool
from oodlit.datamodules.severity.split import Part, part_of
from oodlit.datamodules.sources import MemorySource
from oodlit.datamodules.stream import Stream
from oodlit.detectors import MSP, Energy
from oodlit.errors import DataError, InvalidArgumentError, UnknownNameError
from oodlit.metrics import auroc, fpr_at_tpr
from oodlit.results import FindingWarning, UnfinishedRunWarning, check_same_pool, levels_of_runs
from tests.callbacks import pool_script
from tests.callbacks.pool_script import CASES, make_pool, samples
from tests.callbacks.processes import check_ended, run_together
from tests.callbacks.support import make_module, make_streams, run
from tests.callbacks.test_unfinished import BrokenLate

PAGE = Path(__file__).parents[2] / "docs" / "severity.md"
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore:.*undefined .NaN.")]


def id_stream() -> list[Stream]:
    return [stream for stream in make_streams(with_train=False) if stream.role is Role.ID]


@pytest.fixture(scope="module")
def results() -> Results:
    found = run([MSP(), Energy()], streams=[*id_stream(), make_pool()], batch_size=9).results
    assert found is not None
    return found


# --- values -------------------------------------------------------------------------------------------------------


def test_levels_are_those_of_the_protocol(results):
    """From the images themselves: detectors once more, parts by key, loops over classes."""
    module, pool = make_module().eval(), samples()
    with torch.inference_mode():
        outputs = module(torch.stack([sample.image for sample in pool]))
    for detector in (MSP(), Energy()):
        scores = detector.score(outputs).double()
        confidences = scores.exp() if detector.key() == "msp" else scores
        means, tests = [], []
        for c in range(23):
            mine = [i for i, sample in enumerate(pool) if sample.group == c]
            of_test = [i for i in mine if part_of(pool[i].key, 0.4) is Part.TEST]
            tests.append(of_test)
            means.append(float(confidences[[i for i in mine if i not in of_test]].mean()))
        order = sorted(range(23), key=lambda c: (means[c], c))
        ids = results.scores.query("dataset == 'val'")[detector.key()].to_numpy()
        classes = results.severities("pool", detector.key())
        assert classes["ood_class"].tolist() == [f"class {c}" for c in order]
        np.testing.assert_allclose(classes["severity"], [means[c] for c in order], rtol=1e-6)
        assert classes["n_test"].tolist() == [len(tests[c]) for c in order]
        assert (classes["n_test"] + classes["n_estimation"]).tolist() == [20 if c % 5 else 24 for c in order]
        for level in range(11):
            first = min(level * 18 // 10, 17)
            images = [i for c in order[first : first + 6] for i in tests[c]]
            place = {"dataset": "pool", "detector": detector.key(), "ood_class": f"s{level}"}
            assert results.value("auroc", **place) == pytest.approx(auroc(ids, scores[images]), abs=1e-9)
            assert results.value("fpr95", **place) == pytest.approx(fpr_at_tpr(ids, scores[images]), abs=1e-9)


def test_rows_means_and_intervals(results):
    rows = results.table.query("dataset == 'pool'")
    assert len(rows) == 2 * 2 * (11 + 1)
    assert not rows["value"].isna().any()
    assert (rows["ci_low"] <= rows["value"]).all()
    assert (rows["value"] <= rows["ci_high"]).all()
    for metric in ("auroc", "fpr95"):
        of_levels = rows.query("detector == 'energy' and metric == @metric")["value"]
        assert results.value(f"mean_{metric}", dataset="pool", detector="energy") == math.fsum(of_levels) / 11
    curve = results.levels("pool")
    assert (
        curve.query("detector == 'msp'")["auroc"].tolist()
        == rows.query("detector == 'msp' and metric == 'auroc'")["value"].tolist()
    )
    assert curve.query("detector == 'msp'")["severity"].is_monotonic_increasing
    ids = results.scores.query("dataset == 'val'")
    assert curve.attrs["id_confidence"]["msp"] == pytest.approx(float(np.exp(ids["msp"].astype(float)).mean()))
    assert curve.attrs["id_confidence"]["energy"] == pytest.approx(float(ids["energy"].astype(float).mean()))


def test_what_is_kept_and_named(results):
    """Of estimation images nothing but sums; test images as always; the confidence beside the value."""
    kept = results.scores.query("dataset == 'pool'")
    assert all(part_of(key.removeprefix("pool/"), 0.4) is Part.TEST for key in kept["key"])
    assert results.run.confidences == {"msp": "exp(score)", "energy": "score"}
    assert set(zip(results.estimates["detector"], results.estimates["confidence"], strict=True)) == {
        ("msp", "exp(score)"),
        ("energy", "score"),
    }
    described = results.run.pools["pool"]
    assert (described.classes, described.id_classes) == (23, 6)
    assert described.test == len(kept)
    assert described.test + described.estimation == results.run.counts["pool"] == len(samples())
    assert described.split == "test share 0.4 by key"
    estimation, test = (results.severities("pool", "msp")[name] for name in ("n_estimation", "n_test"))
    assert [note for note in results.run.notes if "pool" in note] == [
        "pool 'pool': the number of images differs between classes (estimation:"
        f" {estimation.min()} to {estimation.max()}, test: {test.min()} to {test.max()})."
        " Each level weights its classes by their number of test images"
    ]
    standard = results.estimates.query("detector == 'energy'")["standard_error"]
    assert (standard > 0).all()


def test_one_pass_for_everything_and_a_page_that_draws(tmp_path):
    callback = run([MSP()], streams=[*id_stream(), make_pool()], output_dir=tmp_path)
    assert (tmp_path / "report.html").is_file()
    assert callback.results.summary().loc["msp", ("pool", "mean_auroc")] == callback.results.value(
        "mean_auroc", dataset="pool", detector="msp"
    )


# --- processes and order ------------------------------------------------------------------------------------------


def launch(devices: int, out: Path) -> dict[str, Results]:
    check_ended(run_together(pool_script.main, devices, out, folder=out / "logs"))
    return {case: Results.load(out / case) for case in CASES}


@pytest.fixture(scope="module")
def single(tmp_path_factory) -> dict[str, Results]:
    return launch(1, tmp_path_factory.mktemp("single"))


def assert_same_levels(one: Results, other: Results) -> None:
    """Scores may differ in their last digits with the batch; the order of classes and all values must not."""
    for detector in one.detectors:
        first, second = (found.severities("pool", detector) for found in (one, other))
        assert first["ood_class"].tolist() == second["ood_class"].tolist()
        assert first["levels"].tolist() == second["levels"].tolist()
        assert first["n_estimation"].tolist() == second["n_estimation"].tolist()
        assert first["auroc"].tolist() == second["auroc"].tolist()
        np.testing.assert_allclose(first["severity"], second["severity"], rtol=1e-5)
    columns = ["detector", "dataset", "ood_class", "metric", "value", "n_id", "n_ood"]
    pd.testing.assert_frame_equal(one.table[columns], other.table[columns], check_exact=True)
    assert one.run.pools == other.run.pools


@pytest.mark.ddp
@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("devices", [2, 3])
def test_several_processes_give_what_one_gives(single, devices, tmp_path):
    several = launch(devices, tmp_path)
    for case, one in single.items():
        assert several[case].run.trainer.processes == devices
        assert_same_levels(one, several[case])


@pytest.mark.ddp
@pytest.mark.xdist_group("processes")
def test_a_permuted_pool_gives_the_same(single):
    assert_same_levels(single["batches of 5"], single["permuted"])


# --- on disk ------------------------------------------------------------------------------------------------------


def test_saved_loaded_and_recomputed_without_the_network(results, tmp_path):
    results.save(tmp_path)
    loaded = Results.load(tmp_path)
    pd.testing.assert_frame_equal(loaded.table, results.table)
    pd.testing.assert_frame_equal(loaded.severities("pool"), results.severities("pool"))
    assert loaded.run.pools == results.run.pools
    other = loaded.recompute(tpr=0.9, confidence=0.8)
    assert other.value("auroc", dataset="pool", detector="msp", ood_class="s3") == results.value(
        "auroc", dataset="pool", detector="msp", ood_class="s3"
    )
    assert "fpr90" in other.levels("pool").columns
    assert loaded.recompute(tpr=0.95).table.equals(results.table)


def test_fewer_classes_are_another_pool(results):
    chosen = [f"class {c}" for c in range(3, 20)]
    fewer = results.recompute(classes={"pool": chosen})
    assert fewer.run.pools["pool"].classes == 17
    assert set(fewer.severities("pool", "msp")["ood_class"]) == set(chosen)
    with pytest.raises(InvalidArgumentError, match="pool 'pool': the pool has 3 classes, but each level requires 6"):
        results.recompute(classes={"pool": chosen[:3]})
    with pytest.raises(InvalidArgumentError, match=r"pool 'pool' differs between .* \(OOD classes: 23 and 17;"):
        check_same_pool({"all": results, "fewer": fewer}, "pool")


def test_results_without_a_pool_replace_those_with_one(results, tmp_path):
    results.save(tmp_path)
    plain = run([MSP()], streams=make_streams(with_train=False)).results
    assert plain.estimates is None
    plain.save(tmp_path)
    assert Results.load(tmp_path).estimates is None
    assert not (tmp_path / "estimates.parquet").exists()
    results.save(tmp_path)
    (tmp_path / "estimates.parquet").unlink()
    with pytest.raises(DataError, match=r"missing estimates\.parquet"):
        Results.load(tmp_path)


def test_a_run_that_was_interrupted_keeps_its_finished_pool(results, tmp_path):
    last = next(stream for stream in make_streams() if stream.name == "shifted")
    broken = Stream(last.name, last.role, BrokenLate(last.source), last.class_names)
    with pytest.raises(DataError, match="the disk is gone"):
        run([MSP(), Energy()], streams=[*id_stream(), make_pool(), broken], output_dir=tmp_path, batch_size=9)
    with pytest.warns(UnfinishedRunWarning, match="finished data sets: val, pool; missing: shifted"):
        kept = Results.load(tmp_path)
    pd.testing.assert_frame_equal(
        kept.table.query("dataset == 'pool'"), results.table.query("dataset == 'pool'"), check_index_type=False
    )
    assert kept.run.pools == results.run.pools


# --- splits and sources -------------------------------------------------------------------------------------------


def test_a_list_splits_the_pool(results, tmp_path):
    listed = {sample.key: part_of(sample.key, 0.4) for sample in samples()}
    lines = [f"{key},{part}" for key, part in listed.items() if key != "00/000"] + ["elsewhere/1.png,test"]
    (tmp_path / "split.csv").write_text("\n".join(["file,part", *lines]))
    plain = replace(make_pool(), role=Role.OOD, split=None)
    pool = severity_pool(plain, split=tmp_path / "split.csv")
    with pytest.warns(FindingWarning, match="the split of 'pool'"):
        found = run([MSP()], streams=[*id_stream(), pool]).results
    texts = [finding.text for finding in found.findings if finding.kind == "split"]
    assert texts == [
        "the split of 'pool' leaves 1 image unused (first: 'pool/00/000')",
        "the split of 'pool' lists 1 image that was not found",
    ]
    assert found.run.pools["pool"].split == "as listed in split.csv"
    with pytest.raises(
        InvalidArgumentError, match=r"pool .* differs between.*\(test images: 188 and 187; images and their split\)"
    ):
        levels_of_runs({"by key": results, "listed": found}, "pool")
    with pytest.raises(InvalidArgumentError, match=r"test_share=0\.5 or split='split\.csv'"):
        severity_pool(plain, test_share=0.5, split="split.csv")


@pytest.mark.filterwarnings("ignore::oodlit.results.finding.FindingWarning")  # of a network without training
def test_code_of_the_page_on_severity_runs(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    monkeypatch.chdir(tmp_path)
    for folder in ("val/cat", "val/dog", "pool/ant", "pool/bee", "pool/elk"):
        (tmp_path / "photos" / folder).mkdir(parents=True)
        for i in range(20):
            pixels = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / folder / f"{i}.png")
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    namespace: dict[str, object] = {"__name__": "severity"}
    for body in blocks:
        exec(compile(body, "severity.md", "exec"), namespace)
    printed = capsys.readouterr().out
    assert "[2, 0, 1] [1.0, 0.75, 0.0]" in printed
    assert "exp(score)" in printed


def test_levels_of_several_runs_stand_side_by_side(results):
    table = levels_of_runs({"a": results, "b": results}, "pool", "fpr95")
    assert table.index.tolist() == [("a", "msp"), ("a", "energy"), ("b", "msp"), ("b", "energy")]
    assert table.columns.tolist() == [*(f"s{i}" for i in range(11)), "mean"]
    assert table.loc[("b", "msp"), "s7"] == results.value("fpr95", dataset="pool", detector="msp", ood_class="s7")


# --- what is wrong is said ----------------------------------------------------------------------------------------


def test_as_many_classes_as_the_classifier_make_one_window():
    found = run([MSP()], streams=[*id_stream(), make_pool(num_classes=6)]).results
    assert found.levels("pool")["auroc"].nunique() == 1
    assert set(found.severities("pool")["levels"]) == {" ".join(f"s{i}" for i in range(11))}


def test_levels_in_the_other_views(results):
    wide = results.per_class("pool", "auroc")
    assert wide.index.tolist() == [f"s{i}" for i in range(11)]
    assert wide.columns.tolist() == ["msp", "energy"]
    assert wide.loc["s4", "energy"] == results.value("auroc", dataset="pool", detector="energy", ood_class="s4")
    with pytest.raises(InvalidArgumentError, match="compare: 'pool' is a pool"):
        results.compare("msp", "energy", dataset="pool")
    with pytest.raises(InvalidArgumentError, match=r"pooled: expected OOD sets, got pool \(pool\)"):
        results.pooled(["pool", "val"])


def test_what_is_no_pool(results):
    with pytest.raises(InvalidArgumentError, match="'val' with role id and 0 classes"):
        severity_pool(id_stream()[0])
    with pytest.raises(InvalidArgumentError, match=r"role pool requires a split.*severity_pool"):
        Stream("pool", Role.POOL, MemorySource([]), ("a",))
    with pytest.raises(
        InvalidArgumentError, match=r"'far': only role pool has a split, got ood; create .*severity_pool"
    ):
        Stream("far", Role.OOD, MemorySource([]), ("a",), split=str)
    with pytest.raises(InvalidArgumentError, match="'val' has role id; severity levels require a pool"):
        results.severities("val")
    with pytest.raises(InvalidArgumentError, match="'pool' has role pool but no severities"):
        Results(results.scores, results.table, results.run, None).severities("pool")
    with pytest.raises(UnknownNameError, match="unknown detector"):
        results.severities("pool", "odin")
    with pytest.raises(InvalidArgumentError, match="pool 'pool': the severities of the classes are missing"):
        Results.from_scores(results.scores, results.datasets, results.detectors)
    gone = results.estimates.query("not (ood_class == 'class 3' and detector == 'msp')")
    with pytest.raises(InvalidArgumentError, match="estimates: missing row pool / msp / class 3"):
        Results.from_scores(results.scores, results.datasets, results.detectors, estimates=gone)
    twice = pd.concat([results.estimates, results.estimates.iloc[:1]])
    with pytest.raises(InvalidArgumentError, match=r"estimates: row pool / .* occurs twice"):
        Results.from_scores(results.scores, results.datasets, results.detectors, estimates=twice)
