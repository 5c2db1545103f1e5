"""What every kind of run does alike: over images, over boxes, and to record features."""

import signal
from pathlib import Path
from typing import Any

import pytest

from oodlit.errors import InvalidArgumentError
from oodlit.runs.run_checks import check_packages
from tests.callbacks import every_kind
from tests.callbacks.every_kind import KINDS, run
from tests.callbacks.processes import Ended, run_function
from tests.callbacks.support import make_trainer
from tests.objects.runs import write

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]
IN_TRAINING, IN_TEST = 2, -3
"""Batches at which something happens, the second one counted from the end."""


@pytest.fixture(scope="module")
def sets(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("sets"), images=4)


@pytest.fixture(scope="module", params=KINDS)
def kind(request) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def expected(kind, sets, tmp_path_factory) -> Any:
    """What an undisturbed run leaves."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    assert run(kind, sets, out) == KINDS[kind].batches
    return KINDS[kind].contents(out)


def disturbed(kind: str, sets: Path, out: Path, what: str, at: int) -> Ended:
    """A run in a process of its own, to which something happens."""
    arguments = (kind, sets, out, what, at if at > 0 else KINDS[kind].batches + at)
    (ended,) = run_function(every_kind.main, *arguments, folder=out.parent / "logs", each=[{}], timeout=120)
    assert ended.code, ended.stdout
    return ended


@pytest.mark.parametrize("at", [IN_TRAINING, IN_TEST])
def test_a_killed_run_resumes_where_it_was(kind, sets, expected, tmp_path, at) -> None:
    out = tmp_path / "out"
    assert disturbed(kind, sets, out, "killed", at).code == -signal.SIGKILL
    done = at - 1 if at > 0 else KINDS[kind].batches + at - 1
    assert run(kind, sets, out) == KINDS[kind].batches - done
    assert KINDS[kind].contents(out) == expected


def test_a_run_that_is_asked_to_end_says_what_is_kept_and_resumes(kind, sets, expected, tmp_path) -> None:
    out = tmp_path / "out"
    ended = disturbed(kind, sets, out, "asked", IN_TEST)
    assert ended.code == 128 + signal.SIGTERM
    assert "asked to end (SIGTERM)" in ended.stderr
    assert KINDS[kind].kept in ended.stderr
    assert run(kind, sets, out) < KINDS[kind].batches
    assert KINDS[kind].contents(out) == expected


def test_a_full_disk_loses_nothing_that_was_written(kind, sets, expected, tmp_path) -> None:
    out = tmp_path / "out"
    ended = disturbed(kind, sets, out, "full", IN_TRAINING)
    assert "OSError" in ended.stdout
    assert run(kind, sets, out) <= KINDS[kind].batches
    assert KINDS[kind].contents(out) == expected


@pytest.mark.parametrize("part", [0, 1, 2])
def test_parts_of_the_other_lightning_package_are_refused(kind, sets, tmp_path, part) -> None:
    one = KINDS[kind]
    callback = one.callback(tmp_path / "out")
    parts: list[Any] = [make_trainer(callback), one.module(), one.data(sets)]
    name = ("Trainer", "LightningModule", "LightningDataModule")[part]
    parts[part] = type(name, (), {"__module__": "lightning.pytorch.somewhere"})()
    owner = type(callback).__name__
    with pytest.raises(InvalidArgumentError, match=rf"{owner}: expected .* got one from lightning"):
        check_packages(owner, *parts, callback._parts)  # the suite checks the types of hooks before they run


def test_limited_batches_make_a_trial_but_no_cache(kind, sets, tmp_path) -> None:
    limit = {"limit_predict_batches": 2}
    if kind == "features":
        with pytest.raises(InvalidArgumentError, match="limit_predict_batches=2"):
            run(kind, sets, tmp_path / "out", **limit)
    else:
        assert run(kind, sets, tmp_path / "out", **limit) < KINDS[kind].batches
        assert KINDS[kind].contents(tmp_path / "out")


def test_outputs_that_would_fill_the_memory_are_warned_of(kind, sets, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("oodlit.runs.run_checks.MANY_BYTES", 1000)
    one = KINDS[kind]
    with pytest.warns(UserWarning, match="return_predictions=False"):
        make_trainer(one.callback(tmp_path / "out")).predict(one.module(), one.data(sets))
