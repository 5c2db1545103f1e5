"""What the words on the page mean, as far as they stand on it."""

import re
from collections.abc import Iterator
from urllib.parse import unquote

from oodlit.report.headline import headline_columns, share_text
from oodlit.results import Results
from oodlit.results.glossary import meaning
from oodlit.roles import Role


def readable(key: str) -> str:
    """A key as the path that it stands for; as it is where that could not be shown.

    Example:
        >>> readable("near/nine/1658%2Epng"), readable("a/line%0Abreak")
        ('near/nine/1658.png', 'a/line%0Abreak')
    """
    path = unquote(key)
    return path if path.isprintable() else key


def terms(results: Results) -> list[tuple[str, str]]:
    """Words of this page that its other parts do not explain, with their meaning."""
    return list(dict([*_of_the_headline(results), *_of_the_unit_tests(results), *_of_the_remarks(results)]).items())


def _of_the_headline(results: Results) -> Iterator[tuple[str, str]]:
    for column in headline_columns(results):
        role = results.dataset(column.dataset).role
        if role is Role.SHIFT:
            yield (
                column.label,
                "Of images that show known classes under an input shift: the share that is accepted, at the threshold"
                f" that keeps {share_text(results.settings.tpr)} of the ID images. They should be kept as far as the"
                " classifier still gets them right, so read it beside the accuracy on them, under Data; no value is"
                " marked as the best.",
            )
        elif role is Role.ID:
            yield (
                column.label,
                "Of the ID images alone: chance that a rightly classified one scores higher than a wrongly classified"
                " one, ties counting half; higher is better. It tells whether the score finds the classifier's own"
                " mistakes.",
            )


def _of_the_unit_tests(results: Results) -> Iterator[tuple[str, str]]:
    if any("uni" in info.class_names for info in results.datasets if info.role is Role.UNIT_TEST):
        yield "uni", "A unit test: uniform noise, every channel of every pixel drawn evenly from all values."


def _of_the_remarks(results: Results) -> Iterator[tuple[str, str]]:
    """Metrics that are named where the page says what was not computed, or is undefined."""
    lines = [str(line) for line in results.run.get("notes") or []]
    lines += [str(entry["metric"]) for entry in results.run.get("undefined") or []]
    for line in lines:
        for word in re.findall(r"[a-z_]+[\d.]*\d|[a-z_]+", line.partition(" not computed")[0]):
            names = results.settings.der_names if word == "der" else [word]
            yield from ((name, text) for name in names if (text := meaning(name, results.settings)))
