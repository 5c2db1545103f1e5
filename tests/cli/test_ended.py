"""Commands that are ended, by a signal or a full disk, leave what was there whole, and say what to do."""

import errno
import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from oodlit.cli.main import main
from oodlit.datamodules.shards import ShardSource
from oodlit.results import Results
from tests.callbacks.processes import Ended, run_function
from tests.cli import ended_script
from tests.report.problems import make_results

pytestmark = [pytest.mark.ddp, pytest.mark.xdist_group("processes")]
ASKED, KILLED, INTERRUPTED = 143, -9, 130


RUN = """
backbone: test_resnet.r160_in1k
weights: none
accelerator: cpu
batch_size: 32
max_batches: 1
data: {{class_path: DigitsBenchmark, init_args: {{per_test: 2, root: {root}}}}}
detectors: [MSP, {{class_path: KNN, init_args: {{k: 5}}}}]
"""


def ended(arguments: list[object], sent: str, at: str, folder: Path) -> Ended:
    words, own = [str(word) for word in arguments], {"TMPDIR": str(folder)}
    return run_function(ended_script.run, words, sent, at, folder=folder, each=[own], timeout=120)[0]


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("results") / "run"
    make_results().save(folder)
    return folder


@pytest.fixture
def pictures(tmp_path) -> Path:
    source = tmp_path / "pictures" / "a"
    source.mkdir(parents=True)
    for index in range(5):
        Image.fromarray(np.full((8, 8, 3), 40 * index, np.uint8)).save(source / f"{index}.png")
    return source.parent


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("sent", "code"), [("SIGTERM", ASKED), ("SIGINT", INTERRUPTED), ("SIGKILL", KILLED)])
def test_a_build_resumes(tmp_path, pictures, capsys, sent, code) -> None:
    arguments = ["shards", "build", "mine", pictures, "--role", "ood", "--shard_size", "1", "--workers", "1", "--out"]
    one = ended([*arguments, tmp_path / "out"], sent, "the third shard", tmp_path / "logs")
    assert one.code == code, one.stderr
    packed = len(list((tmp_path / "out").glob("*.tar")))
    assert packed == 2 if sent == "SIGKILL" else packed in (2, 3)  # a shard that is being written comes to its end
    assert not (tmp_path / "out" / "_info.json").exists()
    if sent != "SIGKILL":
        assert f"finished shards are kept in {tmp_path / 'out'}; run the same command" in one.stderr
        assert not list((tmp_path / "out").rglob("*.tmp"))
    words = list(map(str, arguments))
    assert main([*words, str(tmp_path / "out")]) == 0
    assert main([*words, str(tmp_path / "whole")]) == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert len(ShardSource(tmp_path / "out")) == 5
    capsys.readouterr()


@pytest.mark.parametrize(("sent", "code"), [("SIGTERM", ASKED), ("SIGKILL", KILLED)])
def test_a_page_is_the_old_or_the_new_one(tmp_path, results, capsys, sent, code) -> None:
    page = tmp_path / "page.html"
    page.write_text("an old page")
    one = ended(["report", results, "--out", page], sent, "the page is being written", tmp_path / "logs")
    assert one.code == code, one.stderr
    assert page.read_text() == "an old page"
    if sent == "SIGTERM":
        assert one.stderr.splitlines()[-1] == "oodlit report: the process was asked to end (SIGTERM)"
        assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["page.html"]
    assert main(["report", str(results), "--out", str(page)]) == 0
    assert "<h1>" in page.read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["page.html"]
    capsys.readouterr()


def test_a_full_disk_leaves_the_old_page(tmp_path, results, capsys, monkeypatch) -> None:
    page = tmp_path / "page.html"
    page.write_text("an old page")

    def full(_: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(page))

    monkeypatch.setattr("oodlit.base.atomic.fsync", full)
    assert main(["report", str(results), "--out", str(page)]) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert line.endswith(f"No space left on device: {str(page)!r} - free some space and run the command again\n")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert page.read_text() == "an old page"


@pytest.mark.parametrize(("sent", "code"), [("SIGTERM", ASKED), ("SIGINT", INTERRUPTED)])
def test_a_run_says_what_it_keeps_and_resumes(tmp_path, capsys, sent, code) -> None:
    (tmp_path / "run.yaml").write_text(RUN.format(root=tmp_path / "digits"))
    arguments = ["evaluate", "--config", tmp_path / "run.yaml", "--out", tmp_path / "out"]
    one = ended(arguments, sent, "the third batch is scored", tmp_path / "logs")
    assert one.code == code, one.stderr
    told = {"SIGTERM": "the process was asked to end (SIGTERM)", "SIGINT": "interrupted"}[sent]
    kept = f"the progress of the run is kept in {tmp_path / 'out' / 'unfinished'}"
    start = f"oodlit evaluate: {told} - {kept}; read finished data sets with Results.load, or resume the run"
    assert one.stderr.splitlines()[-1].startswith(start)
    assert not list((tmp_path / "out").rglob("*.tmp"))
    if sent == "SIGINT":
        return
    assert main(list(map(str, arguments))) == 0
    assert "found an unfinished run" in capsys.readouterr().out
    assert Results.load(tmp_path / "out").run.resumed
    assert not (tmp_path / "out" / "unfinished").exists()


def test_a_run_under_timeout_says_that_it_was_asked_to_end_and_where_it_continues(tmp_path, capsys) -> None:
    (tmp_path / "run.yaml").write_text(RUN.format(root=tmp_path / "digits").replace("max_batches: 1", "max_batches: 4"))
    arguments = ["evaluate", "--config", tmp_path / "run.yaml", "--out", tmp_path / "out", "--num_workers", "2"]
    one = ended(arguments, ended_script.GROUP, "the third batch is scored", tmp_path / "logs")
    assert one.code == ASKED, one.stderr
    last = one.stderr.splitlines()[-1]
    assert last.startswith(
        "oodlit evaluate: the process was asked to end (SIGTERM) - the progress of the run is kept in "
    )
    assert "worker" not in last
    assert main(list(map(str, arguments))) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(r"Continuing with image (33|65|97) of \d+ in digits_", said), said


def test_a_guard_that_is_ended_is_no_pass(tmp_path, results) -> None:
    """It writes nothing; the run stays as it is."""
    before = contents(results)
    arguments = ["guard", results, "--fail_if", "*: fpr95 > 1"]
    one = ended(arguments, "SIGTERM", "the run is read", tmp_path / "logs")
    assert (one.code, one.stdout) == (ASKED, "")
    assert one.stderr.splitlines()[-1] == "oodlit guard: the process was asked to end (SIGTERM)"
    assert contents(results) == before
    assert Results.load(results).detectors


def test_a_check_that_is_ended_ends_its_processes(tmp_path) -> None:
    arguments = ["check", "oodlit.detectors.Mahalanobis", "--only", "two_processes"]
    one = ended(arguments, "SIGTERM", "other processes are at work", tmp_path / "logs")
    assert one.code == ASKED, one.stderr
    assert one.stderr.splitlines()[-1] == "oodlit check: the process was asked to end (SIGTERM)"
    started = [int(line.split()[1]) for line in one.stdout.splitlines() if line.startswith("started ")]
    assert len(started) == 2
    assert not [number for number in started if is_running(number)]
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {"0.out", "0.err"}


def is_running(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True
