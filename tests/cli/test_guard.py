"""Limits on the command line: exit codes, what is printed, and that nothing runs where a limit is wrong."""

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from msgspec import structs

from oodlit import Results, Role
from oodlit.base import atomic
from oodlit.callbacks import evaluate_arrays
from oodlit.cli.main import main
from oodlit.detectors import MSP, Detector, ViM
from oodlit.errors import UnknownNameError
from oodlit.results import DatasetInfo, FindingWarning, UnfinishedRunWarning, crossings
from oodlit.results.files import unfinished
from oodlit.runs.folder import lock_folder
from tests.callbacks.support import make_streams, run

CONFIG = """
backbone: tests.gate.support.TinyNetwork
data: {class_path: tests.gate.support.digits, init_args: {root: shards, max_images: 20}}
detectors: [MSP]
accelerator: cpu
"""


@pytest.fixture
def folder(tmp_path: Path) -> str:
    scores = np.concatenate([np.arange(20.0), [1.0, 0.0]])
    names = ["val"] * 20 + ["near"] * 2
    frame = pd.DataFrame({
        "key": [f"{name}/{i}" for i, name in enumerate(names)],
        "dataset": names,
        "group": -1,
        "label": [0] * 19 + [1] + [-1] * 2,
        "prediction": 0,
        "msp": scores,
    })  # fmt: skip
    Results.from_scores(frame, [DatasetInfo("val", Role.ID), DatasetInfo("near", Role.OOD)], ["msp"]).save(tmp_path)
    return str(tmp_path)


def test_results_that_cannot_be_read_are_no_crossed_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.json").write_text("{")
    for name in ("nowhere", "damaged", "."):
        assert main(["guard", str(tmp_path / name), "--fail-if", "msp: fpr95 > 0.5"]) == 2, name
        assert "no limit was checked" in capsys.readouterr().err


def test_several_runs_are_checked_and_boxes_are_refused_with_the_way_out(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = Results.load(folder)
    better = results.scores.assign(msp=results.scores["msp"].where(results.scores["dataset"] == "val", -1.0))
    Results.from_scores(better, results.datasets, ["msp"]).save(tmp_path / "better")
    assert main(["guard", folder, str(tmp_path / "better"), "--fail-if", "MSP: fpr95 > 0.1"]) == 1
    out = capsys.readouterr().out
    assert out.count("FAILED") == out.count("Within the limit") == 1
    assert out.index(f"{folder}:\n") < out.index("FAILED") < out.index(f"{tmp_path / 'better'}:\n")
    assert main(["export", folder, str(tmp_path / "better")]) == 0
    assert "better with msp" in capsys.readouterr().out
    results.with_record(structs.replace(results.run, kind="boxes")).save(tmp_path / "boxes")
    for command in (["export"], ["guard", "--fail-if=msp: fpr95 > 0.1"]):
        assert main([*command, str(tmp_path / "boxes")]) > 0
        said = capsys.readouterr().err
        assert "ObjectResults.load" in said
        assert f"{tmp_path / 'boxes' / 'table.csv'} has all values" in said


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (
            ["--fail-if", "msp: fpr95 > 0.5"],
            0,
            "msp: fpr95 > 50% was compared with 1 value: near 50 %\nWithin the limit\n",
        ),
        (["--fail-if", "msp: fpr95 > 0.5", "--fail-if", "msp: auroc < 0.5"], 0, "Within all 2 limits\n"),
        (
            ["--fail-if", "msp: fpr95 > 0.1", "--fail_if=msp: auroc < 0.5"],
            1,
            "FAILED msp: fpr95 on near is 50 % [9.453, 90.55] (fails if > 10%); accepted images: near/20\n",
        ),
        (["--fail-if", "mps: fpr95 > 0"], 2, "did you mean 'msp'"),
        (["--fail-if", "what"], 2, "limit 'what': expected 'DETECTOR: METRIC"),
        ([], 2, "missing required option: --fail_if or --limits"),
        (["--limits", "nowhere.yaml"], 2, "cannot be read"),
    ],
)
def test_a_finished_run(
    folder: str, options: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["guard", folder, *options]) == code
    out, err = capsys.readouterr()
    assert said in (err if code == 2 else out)
    assert (err.count("\n"), bool(out)) == ((1, False) if code == 2 else (0, True))


def break_off(folder: Path, *, missing: bool = True) -> None:
    """What a newer start of the run leaves that was killed in the OOD set, or before its table."""
    results = Results.load(folder)
    record = structs.replace(results.run, processes=1)
    unfinished.begin(folder / "unfinished", record)
    for number, info in enumerate(results.datasets[: 1 if missing else 2]):
        unfinished.write_part(folder / "unfinished", number, 0, results.images(info.name))


@pytest.mark.filterwarnings("ignore::oodlit.results.UnfinishedRunWarning")
@pytest.mark.parametrize("missing", [True, False])
def test_a_run_that_was_interrupted_is_never_a_pass(
    folder: str, missing: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    break_off(tmp_path, missing=missing)
    call = ["guard", folder, "--fail-if", "model: accuracy < 0.1" if missing else "msp: fpr95 > 0.9"]
    assert main(call) == 2
    assert "a newer run was interrupted" in capsys.readouterr().err
    for name in ("run.json", "table.csv", "scores.parquet"):
        (tmp_path / name).unlink()
    assert main(call) == 2
    out, err = capsys.readouterr()
    said = "missing data sets: near" if missing else "missing data sets: none, but not all results were written"
    assert said in err
    assert (out, err.count("\n")) == ("", 1)
    Results.load(folder).save(tmp_path / "saved")
    assert main(["guard", str(tmp_path / "saved"), *call[2:]]) == 2, "its origin is kept"
    capsys.readouterr()
    assert main([*call, "--allow_unfinished"]) == 0
    assert "Within the limit, for the finished part of the run\n" in capsys.readouterr().out


@pytest.mark.parametrize("is_newer", [True, False])
def test_a_run_in_progress_is_not_called_interrupted(
    folder: str, is_newer: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    break_off(tmp_path)
    if not is_newer:
        for name in ("run.json", "table.csv", "scores.parquet"):
            (tmp_path / name).unlink()
    message = f"{'a newer' if is_newer else 'the'} run is still running"
    with lock_folder(tmp_path):
        with pytest.warns(UnfinishedRunWarning, match=message):
            running = Results.load(folder)
        assert main(["guard", folder, "--fail-if", "model: accuracy < 0.1"]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert "Wait until the run is complete" in err
        with pytest.warns(UnfinishedRunWarning, match=message):
            assert main(["report", folder, "--out", str(tmp_path / "page.html")]) == 0
    if not is_newer:
        assert any("the run is still running; missing data sets: near" in found.text for found in running.findings)
        assert "is still running" in (tmp_path / "page.html").read_text()
    with pytest.warns(UnfinishedRunWarning, match="was interrupted"):
        Results.load(folder)


def test_a_run_into_a_folder_in_use_is_refused_before_it_says_that_it_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    break_off(tmp_path)
    monkeypatch.setattr(atomic, "ORPHANS_S", 0.0)
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(CONFIG)
    with lock_folder(tmp_path):
        assert main(["evaluate", "--config", "run.yaml", "--out", folder]) == 2
    out, err = capsys.readouterr()
    assert "another run is writing to this folder" in err
    assert "unfinished" not in out + err


@pytest.mark.filterwarnings("ignore::oodlit.results.UnfinishedRunWarning")
def test_the_page_of_a_run_that_was_interrupted_says_so_first(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    break_off(tmp_path)
    for name in ("run.json", "table.csv", "scores.parquet"):
        (tmp_path / name).unlink()
    assert main(["report", folder, "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    place = page.index("The run was interrupted; missing data sets: near")
    assert place < page.index("<table")


def test_limits_of_a_file(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(folder) / "limits.yaml"
    file.write_text("fail_if:\n- msp: fpr95 > 0.1\n")
    assert main(["guard", folder, "--limits", str(file)]) == 1
    assert main(["guard", folder, "--limits", str(file), "--fail-if", "msp: auroc < 0.1"]) == 1
    assert capsys.readouterr().out.count("FAILED") == 2


@pytest.mark.integration
def test_a_run_ends_with_its_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(f"{CONFIG}fail_if:\n- 'msp: mean_auroc < 1%'\n")
    call = ["evaluate", "--config", "run.yaml", "--out", "results"]
    for wrong in ("mps: fpr95 > 0", "msp: fpr99 > 0", "msp: fpr95 on nearr > 0", "msp"):
        assert main([*call, "--fail-if", wrong]) == 2
        assert not Path("results").exists(), "names are checked before anything runs"
    capsys.readouterr()
    assert main(call) == 0
    assert "Within the limit" in capsys.readouterr().out
    assert main([*call, "--fail-if", "msp: mean_fpr95 on digits_near >= 0"]) == 1
    out = capsys.readouterr().out
    assert "FAILED msp: mean_fpr95 on digits_near is" in out
    assert "FAILED msp: mean_auroc" not in out
    assert main(["guard", "results", "--fail-if", "msp: mean_fpr95 >= 0"]) == 1
    assert main([*call[:-1], "dry", "--max_batches", "1"]) == 2
    assert "read only a part of each data set (--max_batches 1)" in capsys.readouterr().err


def test_a_trial_is_never_a_pass(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = Results.load(folder)
    results.with_record(structs.replace(results.run, dry_run="limit_predict_batches=2")).save(tmp_path / "dry")
    call = ["guard", str(tmp_path / "dry"), "--fail-if", "msp: fpr95 > 0.5"]
    assert main(call) == 2
    out, err = capsys.readouterr()
    assert "this run read only a part of each data set (limit_predict_batches=2). Limits require" in err
    assert (out, err.count("\n")) == ("", 1)
    assert main([*call, "--allow_unfinished"]) == 0
    assert "Within the limit, for the images of the trial\n" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:.*undefined .NaN.")
@pytest.mark.parametrize(("limit", "expected"), [(1.0, ""), (2, "=2"), (0.5, "=0.5"), (1, "=1")])
def test_a_limited_trainer_makes_a_dry_run(limit: float, expected: str) -> None:
    streams = make_streams(with_train=False)
    results = run([MSP()], streams=streams, batch_size=4, trainer={"limit_predict_batches": limit}).results
    assert results.run.dry_run == (f"limit_predict_batches{expected}" if expected else "")


@pytest.mark.filterwarnings("ignore:detector 'vim' is skipped")
@pytest.mark.parametrize("chosen", [None, [MSP(), ViM(dim=2)]])
def test_every_detector_is_those_that_were_chosen(chosen: list[Detector] | None) -> None:
    rng = np.random.default_rng(0)
    sets = {"id": {"logits": rng.normal(size=(60, 3))}, "ood": {"logits": rng.normal(size=(60, 3))}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FindingWarning)
        results = evaluate_arrays(**sets, detectors=chosen)
    assert "vim" in results.run.not_applicable
    assert results.run.every_detector == (chosen is None)
    if chosen is None:
        assert not crossings(results, ["*: fpr95 > 1"])
    else:
        with pytest.raises(UnknownNameError, match="detector 'vim' is not among the results"):
            crossings(results, ["*: fpr95 > 1"])
