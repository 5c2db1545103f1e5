"""Published figures for the same sets, beside those of the run."""

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from oodlit.report.section import Section, Shown
from oodlit.results import Results
from oodlit.results.names import MODEL
from oodlit.results.published import published_tables
from oodlit.results.published.table import PublishedTable


def sections(shown: Shown) -> Iterator[Section]:
    """Yield one section, if a published table has figures of detectors and sets of the run."""
    tables = [_table(shown.results, table) for table in published_tables().values()]
    content = {
        "tables": [table for table in tables if table["rows"]],
        "without": [table for table in tables if table["notes"] and not table["rows"]],
    }
    if content["tables"] or content["without"]:
        yield Section("published", "Published figures", "published", "published.html", content)


def _table(results: Results, table: PublishedTable) -> dict[str, Any]:
    frame = results.against(table.name)
    is_clear = ~frame["metric"].isin(table.protocol.unclear) & bool(table.protocol.mean)
    rows = frame[is_clear & (frame["published"].notna() | frame["rank"].notna())]
    return {
        "name": table.name,
        "source": table.source,
        "url": table.url,
        "rule": table.rule,
        "model": next(iter(frame["model"]), ""),
        "rows": [_row(table.name, row) for row in rows.astype({"rank": float}).to_dict("records")],
        "notes": _notes(frame),
        "has_differences": bool(frame["difference"].notna().any()),
    }


def _row(table: str, row: dict[Any, Any]) -> dict[Any, Any]:
    place = ", ".join(filter(None, (row["model"], row["printed_as"], row["dataset"], row["metric"])))
    name = "classifier" if row["detector"] == MODEL else row["detector"]
    return row | {"detector": name, "place": "" if math.isnan(row["published"]) else f"{table}: {place}"}


def _notes(frame: pd.DataFrame) -> list[str]:
    """Why there is no difference, grouped by reason."""
    unlike = frame[frame["reason"].ne("") & frame["rank"].isna()]
    notes = []
    for reason, rows in unlike.groupby("reason", sort=False):
        figures = dict.fromkeys(f"{m} of {d}" for d, m in zip(rows["dataset"], rows["metric"], strict=True))
        notes.append(f"{', '.join(figures)}: {reason}")
    return notes
