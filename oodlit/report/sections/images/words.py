"""How to read the page."""

from collections.abc import Iterator

from oodlit.report.section import Section, Shown
from oodlit.report.terms import terms
from oodlit.roles import Role


def sections(shown: Shown) -> Iterator[Section]:
    """Yield one section."""
    content = {
        "settings": shown.results.settings,
        "labels": [column.label for column in shown.columns],
        "unit_tests": [name for info in shown.sets(Role.UNIT_TEST) for name in info.class_names],
        "has_pools": bool(shown.sets(Role.POOL)),
        "terms": terms(shown.results),
    }
    yield Section("words", "How to read this page", "how to read", "words.html", content)
