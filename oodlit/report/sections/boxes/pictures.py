"""Pictures with the boxes of some detectors."""

from collections.abc import Iterator

from oodlit.base.text.readable import readable
from oodlit.report.box_pictures import COLOURS, drawn_pictures, picture_keys
from oodlit.report.section import Section, ShownBoxes

DRAWN = 3
"""Number of detectors whose pictures are shown: the first ones of the page."""


def sections(shown: ShownBoxes) -> Iterator[Section]:
    """Yield one section, if pictures are stored."""
    keys = picture_keys(shown.results)
    groups = [
        {"detector": detector, "images": [(readable(key), url) for key, url in urls.items()]}
        for detector in shown.detectors[:DRAWN]
        if (urls := drawn_pictures(shown.results, detector, shown.folder, keys))
    ]
    if groups:
        colours = {state: "rgb({}, {}, {})".format(*colour) for state, colour in COLOURS.items()}
        yield Section("pictures", "Pictures", "pictures", "boxes/pictures.html", {"groups": groups, "colours": colours})
