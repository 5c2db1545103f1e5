"""The meaning of the metrics of boxes."""

from collections.abc import Iterator

from oodlit.objects.metrics.registry import meaning
from oodlit.report.section import Section, ShownBoxes


def sections(shown: ShownBoxes) -> Iterator[Section]:
    """Yield one section."""
    settings = shown.results.settings
    names = dict.fromkeys(shown.results.table["metric"])
    content = {"settings": settings, "terms": {name: meaning(name, settings) for name in names}}
    yield Section("words", "How to read this page", "how to read", "boxes/words.html", content, is_folded=True)
