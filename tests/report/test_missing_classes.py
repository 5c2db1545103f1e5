"""OOD classes and sets without images, as in trials: never a best value among undefined ones, and always a reason."""

import io
from collections.abc import Callable

import pandas as pd
import pytest
from rich.console import Console

from oodlit.metrics import UndefinedMetricWarning
from oodlit.report import render, summary_table
from oodlit.report.detector_choice import answers
from oodlit.report.headline import headline_columns
from oodlit.report.section import Shown
from oodlit.report.sections.images import classes
from oodlit.report.thumbnails import ThumbnailStyles
from oodlit.results import Results, compare_runs
from tests.report.problems import make_results


def without(keep: Callable[[pd.DataFrame], pd.Series]) -> Results:
    """The results of all images that are kept."""
    whole = make_results(bootstrap=0)
    kept = whole.scores[keep(whole.scores)]
    with pytest.warns(UndefinedMetricWarning):
        return Results.from_scores(kept, whole.datasets, whole.detectors, bootstrap=0)


def terminal(results: Results) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(summary_table(results))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_class_without_images_is_left_out_of_the_mean_and_counted() -> None:
    results = without(lambda rows: (rows["dataset"] != "near") | (rows["group"] != 2))
    page, text = render({"run": results}), terminal(results)
    assert "undefined" not in text
    assert "n = 40 " in text
    assert "2 of 3 classes" in text
    assert page.count("40 images, 2 of 3 classes") == 2  # the headline and the section of the classes
    shown = Shown(results, ThumbnailStyles({}, ""))
    section = next(one for one in classes.sections(shown) if one.title.startswith("near: "))
    names = [row["name"] for row in section.content["rows"]]
    assert len(names) == 2 + 1  # those with images, and the mean
    assert results.dataset("near").class_names[2] not in names
    assert "mean over 2 of 3 classes" in page
    assert "Detector to choose" in page
    assert any("2 of 3 classes" in note for note in results.run.notes)
    table = compare_runs({"one": results, "other": results}, dataset="near", over="classes")
    assert set(table["n"]) == {2}
    assert set(results.compare("msp")["n_classes"]) == {2}


def test_without_any_value_there_is_no_best_detector_but_a_reason() -> None:
    results = without(lambda rows: ~rows["dataset"].isin(["near", "far"]))
    page, text = render({"run": results}), terminal(results)
    for column in headline_columns(results):
        if column.dataset in ("near", "far"):
            assert not any(cell.best or cell.in_group for cell in column.cells)
            assert {cell.interval for cell in column.cells} <= {"no class has images", "there is no OOD score"}
    assert text.count("undefined [1]") == text.count("undefined [2]") == 4
    plain = " ".join(text.split())
    assert "[1] undefined on near: no class has images. [2] undefined on far: there is no OOD score." in plain
    tile = page.partition("Lowest FPR")[2][:200]
    assert "msp" not in tile
    assert "no class has images" in tile
    assert answers(Shown(results, ThumbnailStyles({}, "t"))) == []
