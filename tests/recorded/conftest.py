"""A cache that many tests read."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def whole(tmp_path_factory) -> Path:
    """A cache that was recorded without a break."""
    from tests.recorded.support import IMAGES, record  # not earlier: older jaxtyping hooks imports after this file

    folder = tmp_path_factory.mktemp("whole")
    assert record(folder) == IMAGES
    return folder
