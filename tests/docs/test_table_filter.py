"""The filters above long tables of the site, in a browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import DOCS

pytestmark = pytest.mark.integration
ROWS = [(f"Detector{i}", "yes" if i % 2 else "no", "bank" if i % 5 == 0 else "closed form", str(i)) for i in range(25)]


def _table(rows: list[tuple[str, ...]]) -> str:
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    heads = "".join(f"<th>{name}</th>" for name in ("Detector", "Fit", "Cost", "AUROC"))
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


@pytest.fixture(params=[1400, 400])
def page(request: Any, browser: Any, tmp_path: Path) -> Iterator[Any]:
    parts = [(DOCS / "site" / name).read_text(encoding="utf-8") for name in ("extra.css", "table_filter.js")]
    file = tmp_path / "page.html"
    file.write_text(
        f"<!doctype html><style>{parts[0]}</style><div class='md-typeset'>{_table(ROWS)}{_table(ROWS[:3])}</div>"
        f"<script>{parts[1]}</script>",
        encoding="utf-8",
    )
    opened = browser.new_page(viewport={"width": request.param, "height": 900})
    opened.goto(file.as_uri())
    yield opened
    opened.close()


def test_long_tables_are_filtered_by_text_and_by_value(page: Any) -> None:
    assert page.locator(".table-filter").count() == 1, "the short table has no filters"
    assert page.locator(".table-filter select").count() == 2, "columns with few different values"
    visible = page.locator(".table-tall tbody tr:visible")
    assert visible.count() == 25
    page.locator("select[aria-label=Fit]").select_option("yes")
    page.locator("select[aria-label=Cost]").select_option("bank")
    expected = [row[0] for row in ROWS if row[1:3] == ("yes", "bank")]
    assert [row.split("\t")[0] for row in visible.all_inner_texts()] == expected
    assert page.locator(".table-filter output").inner_text() == f"{len(expected)} of 25 rows"
    page.locator("input[type=search]").fill("detector15 bank")
    assert visible.count() == 1
    page.locator("input[type=search]").fill("nothing like this")
    assert visible.count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
