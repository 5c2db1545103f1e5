"""Pictures with boxes: which state each object has, and where it is drawn."""

import pytest
from PIL import Image

from oodlit.errors import InvalidArgumentError
from oodlit.objects import Mark, draw_boxes
from oodlit.objects.results.curves import tau_curve
from oodlit.report.box_pictures import COLOURS, marks_of, picture_keys

from .support import Box, Plain
from .test_results import made


def test_objects_are_found_dismissed_or_taken_for_a_known_class() -> None:
    places = [(0, 0, 10, 10), (20, 0, 30, 10), (40, 0, 50, 10)]
    split = Plain(
        [
            Box(0, places[0], 0.9, -1.0),
            Box(0, places[1], 0.3, 1.0, label=0),
            Box(0, places[1], 0.8, 1.0, label=1),
            Box(0, (60, 60, 70, 70), 0.5, -1.0),
        ],
        [(0, place, 0) for place in places],
        2,
    )
    found = made(Plain([Box(0, (0, 0, 5, 5), 0.9, 0.0)]), split, classes=("cat", "dog"), tau=0.0)
    marks = marks_of(found, "g", "near")
    assert marks["near/1"] == []
    assert [(m.state, m.label) for m in marks["near/0"]] == [
        ("found", ""), ("taken", "dog"), ("dismissed", ""), ("false", "")
    ]  # fmt: skip
    assert marks["near/0"][3].corners == (60, 60, 70, 70)
    assert picture_keys(found) == ["near/0"]


def test_boxes_are_drawn_where_they_are() -> None:
    image = Image.new("RGB", (50, 40))
    marks = [Mark((20.0, 20.0, 60.0, 60.0), "found"), Mark((90.0, 70.0, 130.0, 90.0), "taken", "cat")]
    drawn = draw_boxes(image, marks, size=(100, 80))
    assert drawn.size == image.size
    assert drawn.getpixel((10, 20)) == drawn.getpixel((30, 30)) == COLOURS["found"]
    assert drawn.getpixel((20, 20)) == (0, 0, 0)
    assert drawn.getpixel((49, 37)) == COLOURS["taken"]  # cut at the border
    assert image.getpixel((10, 20)) == (0, 0, 0)
    with pytest.raises(InvalidArgumentError, match="found, dismissed, taken, false, got 'lost'"):
        Mark((0.0, 0.0, 1.0, 1.0), "lost")


def test_curves_move_objects_from_one_to_the_other() -> None:
    here = [(0, 0, 10, 10), (20, 0, 30, 10)]
    inside = Plain([Box(0, (0, 0, 5, 5), 0.9, score / 10) for score in range(20)])
    split = Plain(
        [Box(0, place, 0.9, 0.3 + 0.4 * n) for n, place in enumerate(here)], [(0, place, 0) for place in here]
    )
    points = tau_curve(made(inside, split, classes=()), "g", "near", points=11)
    assert [point.kept for point in points] == pytest.approx([1 - 0.05 * n for n in range(11)])
    assert [point.tau for point in points] == sorted(point.tau for point in points)
    assert all(point.values["r_u"] + point.values["nose"] == 1 for point in points)
    assert (points[0].values["r_u"], points[-1].values["r_u"]) == (0, 1)
    assert tau_curve(made(Plain(), split, classes=()), "g", "near") == []
