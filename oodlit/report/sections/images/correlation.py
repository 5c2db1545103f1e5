"""Whether models keep their order from level to level of a pool."""

from collections.abc import Iterator, Mapping

from oodlit.report.section import Section
from oodlit.report.severity_pools import correlation_views
from oodlit.results import Results


def sections(runs: Mapping[str, Results]) -> Iterator[Section]:
    """Yield one section for each pool of enough runs."""
    for number, content in enumerate(correlation_views(runs)):
        title = f"{content['name']}: is the order of models the same at all levels?"
        yield Section(f"correlation{number}", title, f"{content['name']}: order of models", "correlation.html", content)
