"""Results on disk: old or new at every instant, whatever is killed or runs at once; damage is named."""

import errno
import hashlib
import json
import os
import threading
from pathlib import Path

import pandas as pd
import pytest
from msgspec import structs

from oodlit import Gate
from oodlit.base import atomic
from oodlit.errors import DataError, InvalidArgumentError
from oodlit.results import Results
from oodlit.results.files import storage, unfinished
from tests.results.support import DATASETS, DETECTORS, run_scores

FILES = ["run.json", "scores.parquet", "table.csv"]


@pytest.fixture(scope="module")
def results():
    return Results.from_scores(run_scores(), DATASETS, DETECTORS, bootstrap=0)


def test_a_run_without_a_finished_data_set_may_be_running_and_can_be_resumed(results, tmp_path):
    run = structs.replace(results.run, processes=1)
    unfinished.begin(tmp_path / "unfinished", run)
    with pytest.raises(DataError, match="the run has not finished any data set yet"):
        Results.load(tmp_path)
    unfinished.begin(tmp_path / "boxes" / "unfinished", structs.replace(run, kind="objects"))
    with pytest.raises(DataError, match="unfinished run of boxes; resume it"):
        Results.load(tmp_path / "boxes")


class Killed(BaseException):
    """Stands for the end of the process."""


def dies_after(monkeypatch, steps, *names):
    """Let the process die at the given step that changes a name on disk; its own clean-up does not run either."""
    left = [steps]

    def guarded(method):
        def call(self, *args, **options):
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return method(self, *args, **options)

        return call

    for name in names or ("rename", "replace", "rmdir"):
        monkeypatch.setattr(Path, name, guarded(getattr(Path, name)))
    monkeypatch.setattr(atomic, "remove", lambda *args: None)


@pytest.mark.parametrize("old", [True, False])
def test_a_kill_at_any_step_leaves_the_old_or_the_new_result(results, tmp_path, monkeypatch, old):
    new = results.recompute(tpr=0.9)
    seen = []
    for steps in range(20):
        folder = tmp_path / f"run {steps}"
        folder.mkdir()
        (folder / "report.html").write_text("page")
        if old:
            results.save(folder)
        with monkeypatch.context() as patch:
            dies_after(patch, steps)
            try:
                new.save(folder)
                done = True
            except Killed:
                done = False
        if not old and not seen and not (folder / ".pending").exists():
            with pytest.raises(DataError, match="incomplete results"):
                Results.load(folder)
        else:
            seen.append(Results.load(folder).settings.tpr)
        results.recompute(tpr=0.8).save(folder)  # a later save ends what was interrupted
        assert Results.load(folder).settings.tpr == 0.8
        assert sorted(p.name for p in folder.iterdir()) == sorted([*FILES, "report.html"])
        assert (folder / "report.html").read_text() == "page"
        if done:
            break
    else:
        pytest.fail("saving takes more than 20 steps")
    assert seen == sorted(seen, reverse=True)  # never back to the old one
    assert seen[-1] == 0.9
    assert len(seen) > 4


def whole(folder, number):
    """Puts a fit of two files and a page into a folder, as a run does."""

    def add(staging):
        (staging / "fitted").mkdir()
        for name in ("detectors.json", "detectors.safetensors"):
            (staging / "fitted" / name).write_text(str(number))
        if number != 2:  # the second run has no page
            (staging / "report.html").write_text(str(number))

    return add


@pytest.mark.parametrize("number", [1, 2])
def test_a_kill_at_any_step_leaves_fit_and_page_of_the_old_run_or_of_the_new_one(
    results, tmp_path, monkeypatch, number
):
    """Fit and page change together with the results; the next write completes an interrupted switch."""
    kept = {"table": results.table, "scores": results.scores, "run": results.run}
    for steps in range(40):
        folder = tmp_path / f"run {steps}"
        folder.mkdir()
        storage.write(folder, **kept, add=whole(folder, 0))
        with monkeypatch.context() as patch:
            dies_after(patch, steps)
            try:
                storage.write(folder, **kept, add=whole(folder, number))
                done = True
            except Killed:
                done = False
        switched = (folder / ".pending").exists()
        if not switched and not done:
            assert (folder / "fitted" / "detectors.json").read_text() in ("0", str(number))
        storage._finish(folder)
        fits = {(folder / "fitted" / n).read_text() for n in ("detectors.json", "detectors.safetensors")}
        assert len(fits) == 1
        if switched or done:
            assert fits == {str(number)}
            assert (folder / "report.html").exists() == (number == 1)
        assert len(Results.load(folder).table) == len(results.table)
        if done:
            break
    else:
        pytest.fail("writing takes more than 40 steps")
    assert steps > 5


@pytest.mark.parametrize("old", [True, False])
def test_a_kill_where_folders_cannot_be_renamed_leaves_nothing_half_that_seems_complete(
    results, tmp_path, monkeypatch, old
):
    """Object stores mounted as folders rename files alone."""
    new, rename, outcomes = results.recompute(tpr=0.9), os.rename, set()

    def refuse(source, target):
        if Path(source).is_dir():
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(source))
        rename(source, target)

    for steps in range(40):
        folder = tmp_path / f"run {steps}"
        if old:
            storage.write(folder, table=results.table, scores=results.scores, run=results.run, add=whole(folder, 0))
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", refuse)
            dies_after(patch, steps, "rename", "replace", "rmdir", "unlink")
            try:
                storage.write(folder, table=new.table, scores=new.scores, run=new.run, add=whole(folder, 1))
                done = True
            except Killed:
                done = False
        outcome = "incomplete"
        if storage.is_complete(folder):
            found = Results.load(folder)
            outcome = {0.95: "0", 0.9: "1"}[found.settings.tpr]
            names = ("fitted/detectors.json", "fitted/detectors.safetensors", "report.html")
            assert {(folder / name).read_text() for name in names} == {outcome}
        else:
            with pytest.raises(
                DataError, match=r"is missing; repeat the run|incomplete results; missing|this folder does not exist"
            ):
                Results.load(folder)
        outcomes.add(outcome)
        storage.write(folder, table=new.table, scores=new.scores, run=new.run, add=whole(folder, 1))
        assert Results.load(folder).settings.tpr == 0.9
        if done:
            break
    else:
        pytest.fail("writing takes more than 40 steps")
    assert outcomes == {"0", "1", "incomplete"} - {"0" if not old else ""}


def test_writers_and_readers_at_once(results, tmp_path):
    """Two writers of different results, and a reader: every reading is one of the two, in full."""
    both = {0.9: results.recompute(tpr=0.9), 0.8: results.recompute(tpr=0.8)}
    folder, errors = tmp_path / "run", []

    def write(one):
        try:
            for _ in range(12):
                one.save(folder)
        except BaseException as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(one,)) for one in both.values()]
    for writer in writers:
        writer.start()
    readings = 0
    while any(writer.is_alive() for writer in writers) or not readings:
        if not folder.exists():
            continue
        found = Results.load(folder)
        pd.testing.assert_frame_equal(found.table, both[found.settings.tpr].table, check_exact=True)
        readings += 1
    for writer in writers:
        writer.join()
    assert not errors
    assert sorted(p.name for p in folder.iterdir()) == FILES
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def edit(folder, **changes):
    file = folder / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def forge(folder, name, content):
    """Another file, with the checksum to it."""
    (folder / name).write_bytes(content)
    checksums = json.loads((folder / "run.json").read_text())["checksums"]
    edit(folder, checksums=checksums | {name: hashlib.sha256(content).hexdigest()})


DAMAGE = {
    "no object": (lambda f: (f / "run.json").write_text("[]"), r"run\.json: Expected `object`, got `array`"),
    "other json": (lambda f: (f / "run.json").write_text("{}"), r"missing checksums, datasets"),
    "binary": (lambda f: (f / "run.json").write_bytes(b"\xff\xfe\x00"), r"run\.json: not valid JSON"),
    "edited": (
        lambda f: (f / "table.csv").write_text("detector\n"),
        r"table\.csv does not match its checksum in run\.json",
    ),
    "cut": (lambda f: (f / "scores.parquet").write_bytes(b"PAR1"), r"scores\.parquet.* does not match .*checksum"),
    "gone": (lambda f: (f / "scores.parquet").unlink(), r"missing scores\.parquet"),
    "bad table": (lambda f: forge(f, "table.csv", b"detector\n"), r"table\.csv is not a table written by oodlit"),
    "bad parquet": (lambda f: forge(f, "scores.parquet", b"PAR1"), r"scores\.parquet cannot be read as Parquet"),
    "newer": (lambda f: edit(f, format=99), r"run\.json: expected format 1 .*got 99"),
    "setting": (lambda f: edit(f, settings={"tpr": 95}), r"run\.json: .*tpr.* got 95.* at `\$\.settings`"),
    "role": (
        lambda f: edit(f, datasets=[{"name": "a", "role": "x", "class_names": [], "num_samples": None}]),
        r"run\.json: Invalid enum value 'x' - at `\$\.datasets\[0\]\.role`",
    ),
    "thresholds": (lambda f: edit(f, thresholds=3), r"run\.json: Expected `object`, got `int` - at `\$\.thresholds`"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named(results, tmp_path, kind):
    damage, message = DAMAGE[kind]
    results.save(tmp_path)
    damage(tmp_path)
    with pytest.raises(DataError, match=message):
        Results.load(tmp_path)


@pytest.mark.parametrize(
    ("entry", "change", "named"),
    [
        ("settings", lambda value: value | {"tpr": 0.9}, r"settings\.tpr"),
        ("settings", lambda value: value | {"rule": "interpolated", "seed": 3}, r"settings\.rule, settings\.seed"),
        ("thresholds", lambda value: value | {"good": {"fpr95": 0.0}}, "thresholds"),
        ("datasets", lambda value: value[::-1], "datasets"),
        ("masked_accuracy", lambda value: value | {"near": [1, 2]}, "masked_accuracy"),
    ],
)
def test_entries_that_no_longer_belong_to_the_table_are_named(results, tmp_path, entry, change, named):
    results.save(tmp_path)
    record = json.loads((tmp_path / "run.json").read_text())
    edit(tmp_path, **{entry: change(record[entry])})
    with pytest.raises(
        DataError, match=rf"run\.json: these entries were changed after the run: {named}\. .* recompute"
    ):
        Results.load(tmp_path)
    edit(tmp_path, entry_checksums={})  # as in files of earlier versions
    assert Results.load(tmp_path).table.equals(results.table)


def test_a_record_with_another_layout_title_or_note_is_the_same(results, tmp_path):
    results.save(tmp_path)
    record = json.loads((tmp_path / "run.json").read_text()) | {"title": "Mine", "note": "checked"}
    (tmp_path / "run.json").write_text(json.dumps(record, sort_keys=True, indent=7))
    found = Results.load(tmp_path)
    assert (found.run.title, found.run.extra, found.run.entry_checksums) == ("Mine", {"note": "checked"}, {})
    found.save(tmp_path / "again")
    assert Results.load(tmp_path / "again").run == found.run


def test_what_is_no_folder_of_results(tmp_path):
    (tmp_path / "file").write_text("x")
    for name, message in {
        "file": r"missing run\.json, table\.csv, scores\.parquet",
        "nowhere": "does not exist",
    }.items():
        with pytest.raises(DataError, match=message):
            Results.load(tmp_path / name)


@pytest.mark.parametrize("inside", [True, False])
def test_leftovers_of_killed_writers_are_removed(results, tmp_path, monkeypatch, inside):
    """A new directory is prepared beside it, one that exists from within: both places are cleaned."""
    folder = tmp_path / "run"
    if inside:
        folder.mkdir()
    with monkeypatch.context() as patch:
        dies_after(patch, 0)
        with pytest.raises(Killed):
            results.save(folder)
    left = next((folder if inside else tmp_path).glob(".run.*.tmp"))
    assert (left / "scores.parquet").is_file()
    foreign = [tmp_path / ".run.mine.tmp", tmp_path / ".other.01234567.tmp"]
    for path in foreign:
        path.mkdir()
    results.save(folder)
    assert sorted(p.name for p in folder.iterdir()) == FILES
    assert sorted(tmp_path.iterdir()) == sorted([folder, *foreign])


@pytest.mark.parametrize("name", ["table.csv", "scores.parquet", "report.html", "thumbnails", "fitted"])
def test_parts_without_a_record_are_no_result_that_may_be_replaced(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(InvalidArgumentError, match=rf"contains {name} but no run\.json, .* choose another folder"):
        storage.check_replaceable(tmp_path)
    assert storage.check_replaceable(tmp_path, keep=tmp_path / "x" / ".." / name) is False


def test_what_may_be_replaced(results, tmp_path):
    assert storage.check_replaceable(tmp_path) is storage.check_replaceable(tmp_path / "new") is False
    results.save(tmp_path)
    assert storage.check_replaceable(tmp_path) is True
    (tmp_path / ".pending").mkdir()
    (tmp_path / "run.json").rename(tmp_path / ".pending" / "run.json")  # a replacement that was interrupted
    assert storage.check_replaceable(tmp_path) is True


def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="missing: this folder does not exist; the working folder is"):
        Results.load(tmp_path / "missing")
    with pytest.raises(DataError, match="missing: this folder does not exist; the working folder is"):
        Gate.load(tmp_path / "missing")
