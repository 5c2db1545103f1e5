"""Published numbers and workflows on pages match the package."""

import re
from pkgutil import resolve_name

import yaml

from oodlit.cli.command import arguments_of
from oodlit.cli.main import COMMANDS, _words
from oodlit.results.published import NINCO
from tests.docs.pages import DOCS, blocks


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


def test_the_workflow_of_the_guard_is_valid() -> None:
    (block,) = (block for block in blocks(DOCS / "guard.md") if block.title.startswith(".github/"))
    workflow = yaml.load(block.body, Loader=yaml.BaseLoader)  # "on" is a word here
    assert set(workflow) == {"name", "on", "jobs"}
    runs = [step["run"].split() for step in workflow["jobs"]["guard"]["steps"] if "run" in step]
    calls = [words[1:] for words in runs if words[0] == "oodlit"]
    assert [call[0] for call in calls] == ["evaluate", "guard"]
    command = " ".join(_words(calls[1]))
    given = arguments_of(resolve_name(COMMANDS[command]), calls[1][1:])
    assert given is not None
    assert str(given["limits"]) == "limits.yaml"
