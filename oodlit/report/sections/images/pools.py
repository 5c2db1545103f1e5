"""Pools, from the easiest to the hardest classes."""

from collections.abc import Iterator

from oodlit.report.section import Section, Shown
from oodlit.report.severity_pools import pool_view
from oodlit.roles import Role


def sections(shown: Shown) -> Iterator[Section]:
    """Yield one section for each pool."""
    for number, info in enumerate(shown.sets(Role.POOL)):
        if shown.detectors:
            content = pool_view(shown.results, info, shown.detectors, shown.thumbnails.classes)
            title = f"{info.name}: from the easiest to the hardest classes"
            yield Section(f"pool{number}", title, f"{info.name}: severity", "pools.html", content)
