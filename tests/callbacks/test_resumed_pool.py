"""A run that was killed within a pool goes on with its levels, its split and its counts."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from oodlit import Results, Role
from oodlit.datamodules import severity_pool
from oodlit.datamodules.stream import Stream
from oodlit.datamodules.stream_identity import identity
from oodlit.detectors import MSP, Energy
from tests.callbacks.pool_script import make_pool, samples
from tests.callbacks.test_pools import id_stream
from tests.callbacks.test_resume import run

pytestmark = pytest.mark.filterwarnings("ignore::oodlit.results.finding.FindingWarning")
BATCHES_OF_ID, BATCHES_OF_POOL = 8, 120
"""Of 4 images each."""


def listed_pool(folder: Path, *, test_of: int = 3) -> Stream:
    """A pool with a list that lacks two of its images and names one that is not there."""
    keys = [sample.key for sample in samples()]
    parts = ["test" if i % test_of == 0 else "estimation" for i in range(len(keys))]
    lines = [f"{key},{part}" for key, part in zip(keys, parts, strict=True) if key not in ("00/001", "22/003")]
    (folder / "split.csv").write_text("\n".join([*lines, "elsewhere/1.png,test"]))
    return severity_pool(replace(make_pool(), role=Role.OOD, split=None), split=folder / "split.csv")


def run_listed(out: Path, *, test_of: int = 3, kill_at: int | None = None) -> tuple[Results, int]:
    streams = [*id_stream(), listed_pool(out.parent, test_of=test_of)]
    return run(out, streams=streams, detectors=[MSP(), Energy()], kill_at=kill_at)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Results:
    return run_listed(tmp_path_factory.mktemp("whole") / "out")[0]


@pytest.mark.parametrize("kill_at", [BATCHES_OF_ID + 2, BATCHES_OF_ID + BATCHES_OF_POOL])
def test_killed_within_a_pool_it_ends_the_same(whole, tmp_path, kill_at):
    run_listed(tmp_path / "out", kill_at=kill_at)
    results, seen = run_listed(tmp_path / "out")
    assert seen == BATCHES_OF_ID + BATCHES_OF_POOL - kill_at + 1
    pd.testing.assert_frame_equal(results.table, whole.table)
    pd.testing.assert_frame_equal(results.estimates, whole.estimates)
    assert results.run.pools == whole.run.pools
    assert results.findings == whole.findings
    assert [finding.text for finding in results.findings if finding.kind == "split"] == [
        "the split of 'pool' leaves 2 images unused (first: 'pool/00/001')",
        "the split of 'pool' lists 1 image that was not found",
    ]


def test_another_list_of_the_same_name_starts_the_pool_from_scratch(tmp_path):
    run_listed(tmp_path / "out", kill_at=BATCHES_OF_ID + 60)
    results, seen = run_listed(tmp_path / "out", test_of=4)
    assert seen == BATCHES_OF_ID + BATCHES_OF_POOL
    assert results.run.pools["pool"].test == len(range(0, len(samples()), 4))


def test_the_list_tells_streams_apart_and_its_order_does_not(tmp_path):
    one, other = listed_pool(tmp_path), listed_pool(tmp_path, test_of=4)
    assert str(one.split) == str(other.split)
    assert identity(one) != identity(other)
    turned = replace(one, split=replace(one.split, parts=dict(reversed(one.split.parts.items()))))
    assert identity(turned) == identity(one)
