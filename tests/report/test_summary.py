"""The table for a terminal."""

import io

import pytest
from rich.console import Console

from oodlit.report.headline import headline_columns, ranked_detectors
from oodlit.report.summary import summary_table
from tests.report.problems import make_results


def shown(results: object) -> str:
    console = Console(file=io.StringIO(), width=200)
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
