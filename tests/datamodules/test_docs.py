"""The documents agree with the code."""

from pathlib import Path

import pytest

from oodlit.datamodules.generated import unit_test_images
from oodlit.datamodules.generated.unit_test_kinds import UNIT_TESTS
from oodlit.datamodules.sets import descriptions

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("description", descriptions().values(), ids=descriptions())
def test_every_set_is_in_the_table_and_the_layouts(description):
    text = (DOCS / "datasets.md").read_text(encoding="utf-8")
    groups = len(description.classes) or description.n_groups or ""
    count = "" if description.expected_count is None else f"{description.expected_count:,}"
    cells = (f"`{description.name}`", description.title, description.role, groups, count, description.licence)
    row = f"| {' | '.join(map(str, cells))} |"
    assert row in text
    layout = f"- `{description.name}`: `{description.layout}`. {description.citation}. {description.source}"
    assert layout in text


def test_every_unit_test_is_defined_with_its_parameters():
    text = (DOCS / "unit_tests.md").read_text(encoding="utf-8")
    assert all(name in text for name in UNIT_TESTS)
    for numbers in (
        unit_test_images.GAUSSIAN_SIGMAS,
        unit_test_images.STRIPES,
        unit_test_images.LOW_FREQ_SIGMAS,
        unit_test_images.PIXEL_PERM_SIGMAS,
        unit_test_images.BLOB_SIGMAS,
    ):
        assert " ".join(f"{number:g}" for number in numbers) in text
    assert (DOCS / "images" / "unit_tests.png").is_file()
