"""Tables do not depend on processes, workers and batches, nor on where a process was killed."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from oodlit import Results, Role
from tests.callbacks.processes import by_hand, run_function
from tests.callbacks.sweep_run import ENDS, Cut, recorded_run, shard_run
from tests.tiny_shards import write_tiny_shards

pytestmark = [pytest.mark.ddp, pytest.mark.xdist_group("processes")]
FEW = settings(
    max_examples=3,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
MANY = settings(FEW, max_examples=20, derandomize=False)

CUTS = st.builds(
    Cut,
    processes=st.integers(2, 3),
    workers=st.sampled_from([0, 2]),
    batch_size=st.sampled_from([1, 3, 8, 64]),
    bank=st.sampled_from(["machine", "process"]),
)
SIZES = st.tuples(st.integers(30, 60), st.integers(1, 20), st.integers(2, 20))
"""Of the training, ID and OOD sets; with three processes and few images, some have no batch."""


def launch(run, first, out: Path, cut: Cut) -> None:
    ended = run_function(run, first, out, cut, folder=out.parent / "logs", each=_places(cut), timeout=180)
    for rank, one in enumerate(ended):
        assert one.code == 0, f"process {rank}:\n{one.stderr[-3000:]}"


def _places(cut: Cut) -> list[dict[str, str]]:
    return by_hand(cut.processes) if cut.processes > 1 else [{}]


def check_same(found: Path, expected: Path, *, tolerance: float = 1e-6) -> None:
    one, several = Results.load(expected), Results.load(found)
    pd.testing.assert_frame_equal(several.table, one.table, rtol=tolerance, atol=1e-9)
    counts = ["detector", "dataset", "ood_class", "metric", "n_id", "n_ood"]
    pd.testing.assert_frame_equal(several.table[counts], one.table[counts])
    assert several.scores["key"].tolist() == one.scores["key"].tolist()
    for name in one.detectors:
        values = [r.scores[name].to_numpy(np.float64) for r in (several, one)]
        np.testing.assert_allclose(*values, rtol=tolerance, atol=1e-12, err_msg=name)
    for entry in ("datasets", "detectors", "counts", "skipped", "fit_notes"):
        assert getattr(several.run, entry) == getattr(one.run, entry), entry


def check_recorded(folder: Path, sizes: tuple[int, int, int], cut: Cut) -> None:
    launch(recorded_run, sizes, folder / "one", Cut())
    launch(recorded_run, sizes, folder / "several", cut)
    check_same(folder / "several", folder / "one")
    record = Results.load(folder / "several").run
    assert record.trainer.processes == cut.processes
    assert ("once per machine" in record.bank) == (cut.bank == "machine")
    assert not Results.load(folder / "one").run.bank


@given(sizes=SIZES, cut=CUTS)
@example(sizes=(31, 1, 2), cut=Cut(processes=3, workers=2, batch_size=3, bank="machine"))
@FEW
def test_recorded_outputs_cut_anyhow(tmp_path_factory, sizes, cut):
    check_recorded(tmp_path_factory.mktemp("cut"), sizes, cut)


@pytest.mark.slow
@given(sizes=SIZES, cut=CUTS)
@MANY
def test_recorded_outputs_cut_anyhow_at_length(tmp_path_factory, sizes, cut):
    check_recorded(tmp_path_factory.mktemp("cut"), sizes, cut)


def check_killed(folder: Path, sizes: tuple[int, int, int], cut: Cut, again: Cut) -> None:
    launch(recorded_run, sizes, folder / "one", Cut())
    places = _places(cut)
    logs = folder / "killed"
    ended = run_function(recorded_run, sizes, folder / "several", cut, folder=logs, each=places, timeout=180)
    code = {"killed": -9, "error": 1, "asked": 143}[cut.end]
    assert ended[cut.victim].code == code or all(one.code == 0 for one in ended)  # fewer batches than that
    if ended[cut.victim].code:
        assert all(one.code for one in ended), "a process ended well without another one"
        gone = f"rank {cut.victim} of {cut.processes} {ENDS[cut.end]}"
        assert all(re.search(gone, one.stderr) for rank, one in enumerate(ended) if rank != cut.victim)
        launch(recorded_run, sizes, folder / "several", again)
    check_same(folder / "several", folder / "one")


@given(
    sizes=SIZES,
    cut=st.builds(
        Cut,
        processes=st.integers(2, 3),
        workers=st.sampled_from([0, 2]),
        batch_size=st.sampled_from([2, 5]),
        kill_at=st.integers(1, 16),
        victim=st.integers(0, 1),
        resume=st.just(True),
    ),
    data=st.data(),
)
@settings(FEW, max_examples=2)
def test_killed_anywhere_it_resumes(tmp_path_factory, sizes, cut, data):
    workers, batch_size = data.draw(st.sampled_from([0, 2])), data.draw(st.sampled_from([2, 5]))
    again = Cut(processes=cut.processes, workers=workers, batch_size=batch_size, resume=True)
    check_killed(tmp_path_factory.mktemp("killed"), sizes, cut, again)


def test_it_resumes_where_one_process_has_kept_nothing(tmp_path):
    """Killed in its first batch; all processes must still meet before the next one."""
    again = Cut(processes=2, batch_size=2, resume=True)
    check_killed(tmp_path, (30, 1, 2), Cut(processes=2, batch_size=2, kill_at=1, victim=0, resume=True), again)


def test_a_fit_that_one_process_is_missing_resumes_with_other_batches(tmp_path):
    """The others had read all their training images, in larger batches."""
    cut = Cut(processes=3, batch_size=5, kill_at=2, victim=0, resume=True)
    check_killed(tmp_path, (51, 19, 6), cut, Cut(processes=3, batch_size=2, resume=True))


@pytest.mark.parametrize(("end", "at"), [("error", 4), ("error", 19), ("asked", 12)])
def test_after_an_error_it_resumes(tmp_path, end, at):
    """In the training images, and in a test set."""
    cut = Cut(processes=2, batch_size=2, kill_at=at, victim=1, end=end, resume=True)
    check_killed(tmp_path, (50, 11, 7), cut, Cut(processes=2, batch_size=5, resume=True))


@given(parts=st.lists(st.integers(1, 6), min_size=1, max_size=4), cut=CUTS)
@settings(FEW, max_examples=1)
def test_shards_of_any_size(tmp_path_factory, parts, cut):
    folder = tmp_path_factory.mktemp("shards")
    for name, role in (("val", Role.ID), ("far", Role.OOD)):
        write_tiny_shards(folder / name, tuple(parts), name=name, role=role)
    launch(shard_run, folder, folder / "one", Cut())
    launch(shard_run, folder, folder / "several", cut)
    check_same(folder / "several", folder / "one", tolerance=1e-5)  # a network rounds by the size of its batch
