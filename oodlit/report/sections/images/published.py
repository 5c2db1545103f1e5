"""Published figures for the same sets, beside those of the run."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from oodlit.report.headline import percent_text
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
        "tables": table.tables,
        "model": next(iter(frame["model"]), ""),
        "rows": [_row(table.name, row) for row in rows.to_dict("records")],
        "notes": _notes(frame),
        "has_differences": bool(frame["difference"].notna().any()),
    }


def _row(table: str, row: Mapping[Any, Any]) -> dict[str, str]:
    place = ", ".join(filter(None, (row["model"], row["printed_as"], row["dataset"], row["metric"])))
    known = not math.isnan(row["published"])
    ranked = not pd.isna(row["rank"])
    return {
        "detector": "classifier" if row["detector"] == MODEL else row["detector"],
        "dataset": row["dataset"],
        "metric": row["metric"],
        "ours": "-" if math.isnan(row["ours"]) else percent_text(row["ours"]),
        "published": f"{100 * row['published']:.7g} %" if known else "-",  # as printed, never with more digits
        "place": f"{table}: {place}" if known else "",
        "difference": "-" if math.isnan(row["difference"]) else f"{100 * row['difference']:+.1f}",
        "standing": f"{row['rank']} of {row['of']}" if ranked else "-",
        "quantile": f"better than {100 * row['quantile']:.0f} % of the other published models" if ranked else "",
    }


def _notes(frame: pd.DataFrame) -> list[str]:
    """Why there is no difference, grouped by reason."""
    unlike = frame[frame["reason"].ne("") & frame["rank"].isna()]
    notes = []
    for reason, rows in unlike.groupby("reason", sort=False):
        figures = dict.fromkeys(f"{m} of {d}" for d, m in zip(rows["dataset"], rows["metric"], strict=True))
        notes.append(f"{', '.join(figures)}: {reason}")
    return notes
