"""How to read the page."""

import re
from collections.abc import Iterator

from oodlit.base.roles import Role
from oodlit.report.section import Section, Shown
from oodlit.results import Results
from oodlit.results.glossary import meaning


def sections(shown: Shown) -> Iterator[Section]:
    """Yield one section."""
    content = {
        "settings": shown.results.settings,
        "labels": [column.label for column in shown.columns],
        "unit_tests": [name for info in shown.sets(Role.UNIT_TEST) for name in info.class_names],
        "has_pools": bool(shown.sets(Role.POOL)),
        "terms": terms(shown.results),
    }
    yield Section("words", "How to read this page", "how to read", "words.html", content, is_folded=True)


def terms(results: Results) -> dict[str, str]:
    """Metrics mentioned in notes and undefined values, with their meaning."""
    found: dict[str, str] = {}
    for line in [*results.run.notes, *(one.metric for one in results.run.undefined)]:
        for word in re.findall(r"[a-z_]+[\d.]*\d|[a-z_]+", line.partition(", because")[0]):
            names = results.settings.der_names if word == "der" else [word]
            found |= {name: text for name in names if (text := meaning(name, results.settings))}
    return found
