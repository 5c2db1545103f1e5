"""The table for a terminal."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from oodlit.report.headline import headline_columns, ranked_detectors
from oodlit.report.summary import summary_table
from oodlit.results.views.terminal import FirstFitting
from tests.report.problems import make_results


def shown(results: object, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(summary_table(results))  # type: ignore[arg-type]
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_values_counts_and_markup() -> None:
    results = make_results(("msp", "[red]mine[/red]"))
    text = shown(results)
    assert "[red]mine[/red]" in text
    assert "n = 60" in text
    assert "n = 30" in text
    for detector in results.detectors:
        assert f"{100 * results.value('mean_fpr95', dataset='near', detector=detector):.1f} %" in text


def test_detectors_are_in_the_order_of_their_mean_fpr() -> None:
    results = make_results(("weak", "strong", "stronger"))
    ranked = ranked_detectors(results, headline_columns(results))

    def mean(detector: str) -> float:
        near = results.value("mean_fpr95", dataset="near", detector=detector)
        return (near + results.value("fpr95", dataset="far", detector=detector)) / 2

    assert [mean(name) for name in ranked] == sorted(mean(name) for name in results.detectors)


def test_best_value_is_marked_for_every_column() -> None:
    results = make_results(("weak", "strong"))
    for column in headline_columns(results):
        values = [cell.sort for cell in column.cells]
        if results.dataset(column.dataset).name == "noisy":
            assert not any(cell.best for cell in column.cells)  # accepting shifted images is neither good nor bad
            continue
        best = min(values) if column.lower_is_better else max(values)
        assert [cell.best for cell in column.cells] == [value == pytest.approx(best) for value in values]


LONG = ("relative_mahalanobis_plus_plus", "temperature_scaled_msp", "msp")


def test_narrow_terminals_lose_intervals_then_columns_and_never_names() -> None:
    results = make_results(LONG)
    lines = {width: shown(results, width).splitlines() for width in (200, 120, 80, 60, 49)}
    for width, text in lines.items():
        assert max(map(len, text)) <= width
        for name in LONG:
            assert sum(line.startswith(f"{name} ") for line in text) == 1
    headings = {width: " ".join(text[:4]) for width, text in lines.items()}
    assert "[" in " ".join(lines[200])
    for width in (120, 80, 60, 49):
        assert "[" not in " ".join(lines[width])
        assert "intervals" in " ".join(lines[width])
    assert headings[120].count("AUROC %") == headings[200].count("AUROC %") == 2
    assert headings[80].count("FPR@95 %") == 2
    assert headings[60].count("AUROC %") < 2
    assert headings[49].count("FPR@95 %") == 1
    below = " ".join(" ".join(lines[49]).split())
    for hidden in ("far FPR@95 %", "near mean AUROC %", "far AUROC %", "tests failed of 3"):
        assert hidden in below
    assert "near mean FPR@95 %" not in below


@given(st.integers(20, 210), st.integers(1, 12))
def test_any_width_shows_every_name(width: int, length: int) -> None:
    names = tuple(f"{'n' * length}{index}" for index in range(3))
    console = Console(file=io.StringIO(), width=width)
    wide = Table("detector", "value " * 10)
    narrow = Table("detector")
    for table in (wide, narrow):
        for name in names:
            table.add_row(name)
    console.print(FirstFitting([wide, narrow]))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert all(name in text for name in names)
