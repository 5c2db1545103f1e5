"""`oodlit demo` from start to end, in this process: what it prints, writes, and does not print."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from oodlit.cli.demos.digits import run_digits
from oodlit.cli.main import main
from oodlit.detectors import detectors
from oodlit.detectors.contract.every import every_detector
from oodlit.errors import InvalidArgumentError, UnknownNameError
from oodlit.results import Results, controls, operating_sentence
from oodlit.results.display_names import display_names

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Folder and printed text of one run with a short training."""
    out = tmp_path_factory.mktemp("demo") / "out"
    console = Console(file=io.StringIO(), width=200)
    page = run_digits(out, epochs=4, console=console)
    assert page == out / "report.html"
    assert isinstance(console.file, io.StringIO)
    return out, console.file.getvalue()


def test_every_detector_is_scored_or_explained(demo: tuple[Path, str]) -> None:
    results = Results.load(demo[0])
    explained = results.run.not_applicable
    assert {*results.detectors, *explained} == set(detectors())
    assert all(explained.values())
    assert len(results.detectors) >= 25
    for of_each in ("ms_per_image", "overview"):
        assert set(results.detectors) <= set(getattr(results.run, of_each))
    assert all(results.run.ms_per_image[name] > 0 for name in results.detectors)


def test_further_passes_are_announced(demo: tuple[Path, str]) -> None:
    assert "Extra forward passes per image: ada_scale 2, " in demo[1]


def test_table_shows_what_was_measured(demo: tuple[Path, str]) -> None:
    results, text = Results.load(demo[0]), demo[1]
    for name in results.detectors:
        assert display_names(results.run)[name] in text
        assert f"{100 * results.value('mean_fpr95', dataset='digits_near', detector=name):.1f} %" in text
    assert "n = 533" in text
    assert "of 17" in text
    assert "506 images of digits_val" in text


def test_the_sentence_for_a_prior_of_one_percent_is_printed_below_the_table(demo: tuple[Path, str]) -> None:
    below = " ".join(demo[1].rpartition("Thresholds accept")[2].split())
    assert f"{operating_sentence(Results.load(demo[0]), 'digits_near', prior=0.01)}." in below
    assert "If 1 % of the images are unknown, like those of digits_near," in below


def test_page_and_data_are_there(demo: tuple[Path, str]) -> None:
    out = demo[0]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "data:image/png;base64," in page
    assert "low_freq_pixel_perm" in page
    assert list((out / "shards").rglob("*.tar"))
    run = json.loads((out / "run.json").read_text(encoding="utf-8"))
    assert run["counts"]["unit_tests"] == 17 * 50


def test_controls_are_on_the_page_and_no_set_is_shown_twice(demo: tuple[Path, str]) -> None:
    results, page = Results.load(demo[0]), (demo[0] / "report.html").read_text(encoding="utf-8")
    assert set(controls(results)["control"]) == {"halves", "training", "covariate", "semantic"}
    assert "<h2>Controls</h2>" in page
    assert set(results.table["dataset"]) <= {info.name for info in results.datasets}  # no mean over a single set
    assert "mean of 1 set" not in demo[1]


def test_network_has_learned_something(demo: tuple[Path, str]) -> None:
    assert Results.load(demo[0]).value("accuracy", dataset="digits_val") > 0.9


def test_second_run_may_replace_the_first_but_nothing_else(
    demo: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.txt").write_text("keep me")
    assert main(["demo", "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "which oodlit did not write" in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.slow
def test_two_runs_give_the_same_numbers_and_no_noise(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("first", "second"):
        assert main(["demo", "--out", str(tmp_path / name)]) == 0
        out, err = capfd.readouterr()
        assert "Report:" in out
        for noise in ("Warning", "GPU available", "Lightning", "tip", "warn"):
            assert noise not in out + err
    for file in ("table.csv", "scores.parquet"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


def test_settings_of_unknown_detectors_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown detector 'nnguide'; did you mean 'nn_guide'"):
        every_detector({"nnguide": {"k": 10}})
    with pytest.raises(InvalidArgumentError, match="argument 'n'; available settings: k, bank_size"):
        every_detector({"nn_guide": {"n": 10}})


def test_train_free_detectors_need_no_training() -> None:
    chosen, left_out = every_detector(train_free=True)
    assert {"msp", "energy", "odin"} <= set(chosen)
    assert left_out["mahalanobis"] == "must be fitted on training images, but there are none"
    assert {*chosen, *left_out} == set(detectors())
