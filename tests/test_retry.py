"""What passes is tried again, what lasts is not."""

import pytest

from oodlit.base import retry
from oodlit.base.retry import retried


class Failing:
    def __init__(self, error: Exception, times: int) -> None:
        self.error, self.times, self.calls = error, times, 0

    def __call__(self) -> int:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return self.calls


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(retry.time, "sleep", found.append)
    return found


def test_pauses_double(pauses: list[float]) -> None:
    assert retried(Failing(OSError("busy"), 3), attempts=4, backoff_s=0.5) == 4
    assert pauses == [0.5, 1.0, 2.0]


def test_the_last_error_is_raised_without_a_pause(pauses: list[float]) -> None:
    action = Failing(OSError("down"), 99)
    with pytest.raises(OSError, match="down"):
        retried(action, attempts=2, backoff_s=0.5)
    assert (action.calls, pauses) == (2, [0.5])


@pytest.mark.parametrize("error", [ValueError("not passing"), FileNotFoundError("lasting")])
def test_errors_that_last_are_raised_at_once(pauses: list[float], error: Exception) -> None:
    action = Failing(error, 99)
    with pytest.raises(type(error)):
        retried(action, attempts=5, backoff_s=0.5, passing=OSError, lasting=(FileNotFoundError,))
    assert (action.calls, pauses) == (1, [])
