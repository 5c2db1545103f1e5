"""A section costs a file, a template and a line."""

from pathlib import Path

import pytest

import oodlit.report
from oodlit.report.section import Section, Shown
from oodlit.report.sections import boxes
from oodlit.report.sections.images import OF_ALL_RUNS, SECTIONS, SEVERAL
from oodlit.report.thumbnails import ThumbnailStyles
from tests.report.problems import make_results
from tests.results.pool_support import pool_results

FOLDER = Path(oodlit.report.__file__).parent


def test_every_file_is_a_line_and_a_template() -> None:
    of_images, of_boxes = (
        {path.stem for path in (FOLDER / "sections" / kind).glob("*.py")} - {"__init__"} for kind in ("images", "boxes")
    )
    listed = [function.__module__.rpartition(".")[2] for function in (*SECTIONS, *SEVERAL, *OF_ALL_RUNS)]
    assert sorted(listed) == sorted(of_images)
    assert of_images <= {path.stem for path in (FOLDER / "html").rglob("*.html")}
    assert {function.__module__.rpartition(".")[2] for function in boxes.SECTIONS} == of_boxes
    assert of_boxes - {"measured"} == {path.stem for path in (FOLDER / "html" / "boxes").glob("*.html")}


@pytest.mark.parametrize("results", [make_results(bootstrap=0), pool_results(), make_results((), bootstrap=0)])
def test_sections_have_anchors_of_their_own_and_say_what_they_are(results: object) -> None:
    shown = Shown(results, ThumbnailStyles({}, "t"))  # type: ignore[arg-type]
    found = [section for sections in SECTIONS for section in sections(shown)]
    assert len(found) >= 3
    assert len({section.key for section in found}) == len(found)
    for section in found:
        assert isinstance(section, Section)
        assert section.title
        assert section.entry
        assert (FOLDER / "html" / section.template).is_file()
