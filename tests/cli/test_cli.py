"""The command line: help without torch, one-line errors, exit codes, and each command end to end."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from oodlit.cli.main import COMMANDS, main
from oodlit.datamodules.sets import descriptions
from oodlit.detectors import detectors
from oodlit.objects import ObjectSettings
from oodlit.objects.metrics.registry import box_metrics
from oodlit.results import Results

RUN = """
backbone: test_resnet.r160_in1k
weights: none
accelerator: cpu
batch_size: 32
data:
  class_path: DigitsBenchmark
  init_args:
    per_test: 2
    root: {root}
detectors:
  - MSP
  - class_path: KNN
    init_args: {{k: 5}}
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("config")
    path = folder / "run.yaml"
    path.write_text(RUN.format(root=folder / "digits"))
    return path


def one_line(text: str) -> str:
    assert text.endswith("\n")
    assert text.count("\n") == 1, text
    return text.strip()


# --- help and errors --------------------------------------------------------------------------------------------------


def test_help_fits_a_screen_and_imports_no_torch() -> None:
    code = (
        "import contextlib, io, sys\n"
        "from oodlit.cli.main import COMMANDS, main\n"
        "for name in ['', 'shards', 'objects', *COMMANDS]:\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as out:\n"
        "        assert main([*name.split(), '--help']) == 0, name\n"
        "    lines = out.getvalue().splitlines()\n"
        "    assert len(lines) <= 50, (name, len(lines))\n"
        "    assert not [line for line in lines if len(line) > 80], name\n"
        "print([m for m in ('torch', 'numpy', 'pandas', 'pytorch_lightning') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


def test_help_describes_every_option_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    seen = 0
    for name in COMMANDS:
        assert main([*name.split(), "--help"]) == 0
        for line in capsys.readouterr().out.splitlines():
            if line.startswith("  --"):
                option, _, text = line.strip().partition("  ")
                assert text.strip(), f"{name}: {option} has no description"
                seen += 1
    assert seen > 80


def test_module_can_be_run() -> None:
    done = subprocess.run([sys.executable, "-m", "oodlit", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("oodlit ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("lst", "unknown command 'lst'; did you mean 'list'"),
        ("shards bild", "unknown command 'bild' of 'oodlit shards'; did you mean 'build'"),
        ("demo cifar", "NAME: invalid value cifar; choose one of 'digits', 'severity', 'objects', 'imagenet'"),
        ("demo --seed x", "--seed: expected int, got x"),
        ("demo --bogus", "unknown option 'bogus'; did you mean 'out'? Known: accelerator, debug, out, seed"),
        ("demo --sed=1", "unknown option 'sed'; did you mean 'seed'"),
        ("shards build a b --out c --role odd", "--role: invalid value odd; choose one of 'train', 'id'"),
        ("list", "missing required argument: KIND"),
        ("evaluate", "missing required options: --backbone, --data"),
        ("evaluate --config /nowhere/run.yaml", "--config: cannot read /nowhere/run.yaml (No such file or directory)"),
        ("--bogus", "expected a command before the option --bogus"),
    ],
)
def test_usage_errors_are_one_line_with_exit_code_2(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == 2
    assert message in one_line(capsys.readouterr().err)


def test_no_command_shows_the_list_and_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "oodlit COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--detectors=[MSPP]", "unknown detector 'MSPP'; did you mean 'MSP'"),
        ("--data=DigitBenchmark", "unknown data class 'DigitBenchmark'; did you mean 'DigitsBenchmark'"),
        ("--detectors=Mahalanobiss", "unknown detector 'Mahalanobiss'; did you mean 'Mahalanobis'"),
        ("--detectors=[knn, fDBD, MC dropout, mahalanobis++, nob]", "unknown detector 'nob'"),
        ("--detectors=MSP,nob", "unknown detector 'nob'"),
        (
            "--data.init_args.per_tst=3",
            "unknown argument 'per_tst' of oodlit.datamodules.DigitsBenchmark; did you mean",
        ),
        ("--tpr=95", "tpr"),
        ("--backbone=test_resnet_typo", "unknown backbone 'test_resnet_typo'; did you mean"),
        ("--head=zapp", "zapp"),
        ("--max_batches=x", "--max_batches"),
        ("--fitted=there", "not both; if the configuration file has detectors, add --detectors null"),
    ],
)
def test_wrong_classes_in_a_run(option: str, message: str, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--config", str(config), option]) == 2
    assert message in one_line(capsys.readouterr().err)


def test_wrong_argument_of_a_detector_names_class_and_option(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(config.read_text().replace("k: 5", "kk: 5"))
    assert main(["evaluate", "--config", str(wrong)]) == 2
    line = one_line(capsys.readouterr().err)
    assert "unknown argument 'kk' of oodlit.detectors.KNN; did you mean 'k'" in line


def test_failed_run_is_one_line_with_exit_code_1_and_a_traceback_on_demand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path)]) == 1
    assert "incomplete results" in one_line(capsys.readouterr().err)
    assert main(["report", str(tmp_path), "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("end", [KeyboardInterrupt(), SystemExit(1)])
def test_interrupt_is_one_line(
    end: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lightning turns an interrupt within a loop into an exit."""

    def interrupted(*arguments: object, **options: object) -> None:
        raise end

    monkeypatch.setattr("oodlit.cli.demos.digits.run_digits", interrupted)
    assert main(["demo"]) == 130
    assert one_line(capsys.readouterr().err) == "oodlit demo: interrupted"


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verbose", [[], ["--verbose"]])
def test_list_shows_the_whole_registry(verbose: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "detectors", *verbose]) == 0
    text = capsys.readouterr().out
    assert all(key in text for key in detectors())
    assert f"{len(detectors())} detectors" in text
    assert main(["list", "datasets", *verbose]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in descriptions())
    assert main(["list", "metrics", *verbose]) == 0
    text = capsys.readouterr().out
    assert all(
        name in text for name in ("fpr95", "accepted95", "mean_NAME", "-- metrics of boxes" if verbose else "of boxes")
    )
    assert all(name in text for name in box_metrics(ObjectSettings()))
    assert ":math:" not in text
    assert ("fpr_at_tpr" in text) is bool(verbose)
    assert "Warning" not in text  # the package exports one; it measures nothing


def test_detectors_without_settings_are_listed_without(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "detectors", "--verbose"]) == 0
    text = capsys.readouterr().out
    assert "args" not in text
    assert "settings: temperature=1.0" in text
    assert "settings" not in text.split("\nmsp\n")[1].split("\n-- ")[0]


def test_fitted_in_place_of_the_detectors_of_the_file(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["evaluate", "--config", str(config), "--max_batches", "1"]
    first, second = tmp_path / "first", tmp_path / "second"
    assert main([*arguments, "--out", str(first)]) == 0
    assert main([*arguments, "--out", str(second), "--fitted", str(first / "fitted"), "--detectors", "null"]) == 0
    assert Results.load(second).detectors == ("msp", "knn")
    part = "Fits and thresholds use part of the training images: digits_train 32 of "
    assert capsys.readouterr().out.count(part) == 1  # the second run reads none
    assert part in (first / "report.html").read_text(encoding="utf-8")
    assert part not in (second / "report.html").read_text(encoding="utf-8")


def test_strict_names_its_option(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    arguments = ["evaluate", "--config", str(config), "--out", out, "--strict", "--detectors=[MSP, MCDropout]"]
    assert main(arguments) in {1, 2}
    assert capsys.readouterr().err.rstrip().endswith("pass strict=False (on the command line: omit --strict)")


@pytest.mark.integration
def test_evaluate_writes_results_page_and_its_own_configuration(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["evaluate", "--config", str(config), "--out", str(out), "--detectors+=Energy", "--tpr", "0.9"]) == 0
    text = capsys.readouterr().out
    assert "digits_near" in text
    assert "\nEnergy " in text
    assert str(out / "report.html") in text
    assert (out / "report.html").is_file()
    results = Results.load(out)
    assert results.detectors == ("msp", "knn", "energy")
    assert results.settings.tpr == 0.9
    assert "test_resnet.r160_in1k" in results.run.config
    again = tmp_path / "again.yaml"
    again.write_text(results.run.config)
    assert main(["evaluate", "--config", str(again), "--out", str(tmp_path / "again")]) == 0
    assert Results.load(tmp_path / "again").table.equals(results.table)


def test_max_batches_counts_batches(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1 is one batch per stream, not Lightning's 1.0 = all of them."""
    out = tmp_path / "out"
    arguments = ["evaluate", "--config", str(config), "--out", str(out), "--max_batches", "1", "--detectors=[MSP]"]
    assert main(arguments) == 0
    assert set(Results.load(out).run.counts.values()) == {32}
    partial = "Not all images were scored: digits_val 32 of 506"
    assert "on a part of the training images" not in (out / "report.html").read_text(encoding="utf-8")
    assert partial in capsys.readouterr().out
    assert partial in (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("option", ["--max_batches=0", "--max_batches=-1", "--batch_size=0", "--num_workers=-1"])
def test_numbers_out_of_range(option: str, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--config", str(config), "--out", str(tmp_path / "out"), option]) == 2
    assert "must be at least" in one_line(capsys.readouterr().err)


def test_report_of_two_runs(config: Path, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        arguments = ["evaluate", "--config", str(config), "--max_batches", "1", "--detectors=[MSP]"]
        assert main([*arguments, "--out", str(folder)]) == 0
    page = tmp_path / "both.html"
    assert main(["report", *map(str, folders), "--out", str(page)]) == 0
    assert page.read_text(encoding="utf-8").count("<h1>") == 1
    assert sorted(path.name for path in tmp_path.glob("both*")) == ["both-first.html", "both-second.html", "both.html"]


def test_shards_build_info_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for index in range(3):
            pixels = np.full((8, 8, 3), 40 * index + (name == "b"), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{index}.png")
    source, out = str(tmp_path / "images"), str(tmp_path / "shards")
    assert main(["shards", "build", "mine", source, "--out", out]) == 2
    assert "--role" in one_line(capsys.readouterr().err)
    assert main(["shards", "build", "mine", source, "--out", out, "--role", "ood"]) == 0
    assert "6 images of 'mine' (ood, 2 classes)" in capsys.readouterr().out
    assert main(["shards", "info", out]) == 0
    assert "mine" in capsys.readouterr().out
    assert main(["shards", "verify", out]) == 0
    assert "6 images, ok" in capsys.readouterr().out
    shard = next((tmp_path / "shards").glob("*.tar"))
    shard.write_bytes(shard.read_bytes()[:-600])
    assert main(["shards", "verify", out]) == 1
    assert shard.name in capsys.readouterr().out


def test_known_set_refuses_options_for_own_sets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["shards", "build", "ninco", str(tmp_path), "--out", str(tmp_path / "out"), "--role", "ood"]
    assert main(arguments) == 2
    assert "'ninco' is a known data set; omit --role" in one_line(capsys.readouterr().err)


def test_check_runs_the_conformance_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine_for_check.py").write_text(
        "from oodlit.detectors import Reference, TrainFreeDetector\n"
        "class Backwards(TrainFreeDetector):\n"
        "    needs = frozenset({'logits'})\n"
        "    reference = Reference('t', 'a', 'v', 2024, 'https://example.org')\n"
        "    def _score(self, outputs):\n"
        "        return -outputs.require('logits').amax(dim=1)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["check", "oodlit.detectors.MSP", "--only", "higher"]) == 0
    assert re.search(r"checking oodlit.detectors.MSP .* 1/1 \d:\d\d:\d\d", capsys.readouterr().err)  # progress and time
    assert main(["check", "mine_for_check.Backwards", "--only", "higher"]) == 1
    assert "fail" in capsys.readouterr().out.lower()
    assert main(["check", "mine_for_check.Nothing"]) == 2
    assert "Nothing" in one_line(capsys.readouterr().err)
    assert main(["check", "margin"]) == 2
    assert "unknown detector 'margin'" in one_line(capsys.readouterr().err)
    assert main(["check", "oodlit.detectors.MSP", "--only", "nothing"]) == 2
    assert "nothing" in one_line(capsys.readouterr().err)


def test_check_without_its_extra_says_so_before_torch_is_imported() -> None:
    code = (
        "import sys\n"
        "sys.modules['hypothesis'] = None\n"
        "from oodlit.cli.main import main\n"
        "assert main(['check', 'oodlit.detectors.MSP']) == 1\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert "pip install 'oodlit[testing]', or '.[testing]' in a checkout" in one_line(done.stderr)


def test_reader_that_has_seen_enough_is_no_interruption() -> None:
    code = "import sys; from oodlit.cli.main import main; sys.exit(main(['list', 'datasets', '--verbose']))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


def test_run_json_holds_the_command_line(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["evaluate", "--config", str(config), "--max_batches", "1", "--out", str(out)]) == 0
    run = json.loads((out / "run.json").read_text(encoding="utf-8"))
    assert {"argv", "versions", "backbone", "config", "counts"} <= set(run)


def test_a_run_that_was_interrupted_does_not_keep_its_folder_from_the_next(config: Path, tmp_path: Path) -> None:
    """Also where somebody made a page of the finished streams meanwhile."""
    out = tmp_path / "out"
    arguments = ["evaluate", "--config", str(config), "--out", str(out), "--max_batches", "1", "--detectors=[MSP]"]
    assert main(arguments) == 0
    (out / "unfinished").mkdir()
    (out / "unfinished" / "run.json").write_text((out / "run.json").read_text())
    for name in ("run.json", "table.csv", "scores.parquet"):
        (out / name).unlink()
    assert (out / "report.html").is_file()
    assert main(arguments) == 0
    assert Results.load(out).detectors == ("msp",)
    assert not (out / "unfinished").exists()
