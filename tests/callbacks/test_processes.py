"""Two and three real processes (gloo) give what one process gives, also where one gets no batch."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from oodlit import Results, Role
from oodlit.detectors import KNN, Mahalanobis
from tests.callbacks import process_script
from tests.callbacks.processes import check_ended, python, run_commands, run_function, run_together
from tests.callbacks.support import make_streams, run
from tests.tiny_shards import write_tiny_shards

pytestmark = [pytest.mark.ddp, pytest.mark.xdist_group("processes")]
CASES = ("full-0", "full-2", "few-0", "train-free-0", "seven-0", "shards-0", "shards-2", "zero-shot-0")


def launch(devices: int, out: Path) -> None:
    for name, role in (("val", Role.ID), ("far", Role.OOD)):  # before the processes, which would all write at once
        write_tiny_shards(out / "shards" / name, (5, 1, 1), name=name, role=role)
    check_ended(run_together(process_script.main, devices, out, folder=out / "logs-of-processes"))


@pytest.fixture(scope="module")
def single(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("single")
    launch(1, out)
    return out


@pytest.fixture(scope="module", params=[2, 3])
def several_processes(request, tmp_path_factory) -> tuple[int, Path]:
    out = tmp_path_factory.mktemp("several")
    launch(request.param, out)
    return request.param, out


@pytest.mark.parametrize("case", CASES)
def test_several_processes_give_what_one_gives(single, several_processes, case):
    devices, out = several_processes
    one = Results.load(single / case)
    check_same(one, Results.load(out / case), devices)
    expected = {"full": {"combined", "sirc"}, "zero-shot": {"mcm", "gl_mcm", "neg_label", "csp"}}
    assert expected.get(case.rpartition("-")[0], set()) <= {*one.detectors}


def check_same(one: Results, several: Results, devices: int) -> None:
    assert several.run.trainer.processes == devices
    keys = ["detector", "dataset", "ood_class", "metric"]
    pd.testing.assert_frame_equal(one.table[keys], several.table[keys])
    np.testing.assert_allclose(several.table["value"], one.table["value"], atol=1e-12)
    np.testing.assert_array_equal(several.table["n_ood"], one.table["n_ood"])
    assert one.scores["key"].tolist() == several.scores["key"].tolist()
    for name in one.detectors:
        np.testing.assert_allclose(
            several.scores[name].to_numpy(np.float64),
            one.scores[name].to_numpy(np.float64),
            rtol=1e-4,
            atol=1e-6,
            err_msg=name,
        )


@pytest.mark.parametrize("case", ["seven-0", "shards-0", "shards-2"])
def test_samples_duplicated_to_even_out_ranks(single, several_processes, case):
    """7 samples, batch 2, 1, 2 and 3 processes; 3 shards of 5, 1 and 1 samples: every key exactly once."""
    for out in (single, several_processes[1]):
        keys = Results.load(out / case).scores.groupby("dataset")["key"]
        assert keys.count().to_dict() == keys.nunique().to_dict() == {"val": 7, "far": 7}


@pytest.mark.integration
@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_lightning_starts_the_other_process_and_an_error_in_one_ends_both(single, tmp_path, rank):
    """A program: its first run gives what one process gives; of the second, the error of one process is told."""
    command = python("tests.callbacks.broken_script", rank, tmp_path / "out")
    (ended,) = run_commands([command], tmp_path / "logs", each=[{}], timeout=240)
    check_same(Results.load(single / "full-0"), Results.load(tmp_path / "out"), 2)
    assert ended.code != 0
    assert "DataError: data set 'far': key" in ended.stderr


def run_again(folder: Path) -> None:
    streams = make_streams(with_train=False)
    run(None, fitted=folder / "first" / "fitted", output_dir=folder / "again", streams=streams, num_thumbnails=0)


def test_fit_save_new_process_load(tmp_path):
    """A process that only knows the folder finds the fit."""
    first = run([Mahalanobis(), KNN(k=5)], output_dir=tmp_path / "first", num_thumbnails=0).results
    check_ended(run_function(run_again, tmp_path, folder=tmp_path / "logs", each=[{}], timeout=120))
    again = Results.load(tmp_path / "again")
    for name in ("mahalanobis", "knn"):
        expected = first.scores.query("dataset == 'far'")[name].to_numpy()
        np.testing.assert_allclose(again.scores.query("dataset == 'far'")[name].to_numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("case", process_script.LOGGED)
def test_one_run_on_disk_whatever_the_number_of_processes(single, several_processes, case):
    """There is one run for all ranks, and steps never go backwards."""
    files = list((several_processes[1] / "logs" / case).rglob("metrics.csv"))
    assert len(files) == 1
    written = pd.read_csv(files[0])
    assert len(written) == 1
    assert set(Results.load(single / case).metrics_by_name()) <= set(written.columns)
