"""A cache that many tests read."""

from pathlib import Path

import pytest

from tests.recorded.support import IMAGES, record


@pytest.fixture(scope="session")
def whole(tmp_path_factory) -> Path:
    """A cache that was recorded without a break."""
    folder = tmp_path_factory.mktemp("whole")
    assert record(folder) == IMAGES
    return folder
