"""What pages state of published figures, sizes and versions is what the package says."""

import re

from oodlit.results.published import NINCO
from tests.docs.pages import DOCS


def test_expected_figures_of_ninco_are_the_published_ones() -> None:
    text = (DOCS / "reproduce_ninco.md").read_text(encoding="utf-8").split("## 5. What to expect")[1]
    head, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\| .*\|$", text, re.MULTILINE)
    )
    models = head[1:]
    assert len(models) == 2
    assert len(rows) == 11
    for name, *figures in rows:
        (printed,) = NINCO.printed_as(name)
        for model, figure in zip(models, figures, strict=True):
            value = NINCO.value(printed, "ninco", "mean_fpr95", model=model)
            assert value is not None
            assert f"{100 * value:.1f}" == figure, (name, model)
