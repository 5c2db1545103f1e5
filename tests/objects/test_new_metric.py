"""A metric of boxes costs one file and one line of export: table, summary, listing and page know it."""

import importlib

import pandas as pd
import pytest
from rich.console import Console

from oodlit.cli.listing import listing
from oodlit.objects import ObjectSettings, metrics, write_report
from oodlit.objects.metrics.registry import box_metrics, meaning
from oodlit.objects.results.summary import headline_metrics, summary_tables

from .test_results import example

FILE = '''
"""Boxes that hit an unknown object."""

from oodlit.objects.metrics.boxes import of_open_set, split_entry
from oodlit.objects.metrics.open_set import OpenSet, Ratio


def hit_share(found: OpenSet) -> Ratio:
    """Share of the boxes that hit <an> object."""
    return Ratio(found.image[found.hits], found.image, "there is no box")


ENTRIES = (split_entry(hit_share, "higher", of_open_set(hit_share)),)
'''


@pytest.fixture
def with_hit_share(tmp_path, monkeypatch):
    (tmp_path / "file_of_hit_share.py").write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(metrics, "hit_share", importlib.import_module("file_of_hit_share").hit_share, raising=False)
    monkeypatch.setattr(metrics, "__all__", [*metrics.__all__, "hit_share"])


@pytest.mark.usefixtures("with_hit_share")
def test_table_and_summary_have_it() -> None:
    found = example(bootstrap=20, t_star=0.2)
    split = found.scored_boxes("near")
    row = found.row("hit_share", dataset="near", detector="g")
    assert row["value"] == pytest.approx(split.hits.mean())
    assert row["ci_low"] <= row["value"] <= row["ci_high"]
    assert (row["n_ood"], row["rules"]) == (len(split), "exact")
    assert headline_metrics(found.settings)[-1] == "hit_share"
    console = Console(width=250, record=True)
    console.print(*summary_tables(found))
    assert "hit_share" in console.export_text()


@pytest.mark.usefixtures("with_hit_share")
def test_listing_and_page_explain_it(tmp_path, capsys) -> None:
    listing("metrics", verbose=True)
    shown = capsys.readouterr().out
    facts = shown[shown.index("\nhit_share\n") :].splitlines()[2:5]
    assert "  better: higher" in facts
    assert "  of data sets: OOD" in facts
    page = write_report(example(), tmp_path / "report.html").read_text()
    assert page.count("share of the boxes that hit &lt;an&gt; object") >= 2  # the heading of its column, and the terms


def test_other_values_stay_as_they_are(request) -> None:
    plain = example(bootstrap=20)
    request.getfixturevalue("with_hit_share")
    table = example(bootstrap=20).table
    others = table[table["metric"] != "hit_share"].reset_index(drop=True)
    pd.testing.assert_frame_equal(plain.table, others, check_exact=True)


def test_without_its_line_it_is_unknown() -> None:
    assert "hit_share" not in box_metrics(ObjectSettings())
    assert meaning("hit_share", ObjectSettings()) == ""
