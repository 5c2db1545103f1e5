"""README and docs are real: code runs, commands exist, links have targets."""

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from oodlit.cli.main import COMMANDS, main
from oodlit.recorded.from_arrays import KEYS as OF_FEATURES
from oodlit.results import Results
from oodlit.results.glossary import PREFIXES, glossary
from tests.docs.pages import script

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "tests" / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
BLOCK = re.compile(r"(<!-- not run[^>]*-->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _blocks(page: Path, language: str) -> list[tuple[bool, str]]:
    return [(not skip, body) for skip, kind, body in BLOCK.findall(page.read_text("utf-8")) if kind == language]


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore::oodlit.results.FindingWarning")
def test_readme_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In an empty folder; findings warn that the network is not trained."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    ((run, body),) = _blocks(ROOT / "README.md", "python")
    assert run
    assert len(body.splitlines()) <= 14
    namespace: dict[str, object] = {"__name__": "readme"}
    exec(compile(body, "README.md", "exec"), namespace)
    assert (tmp_path / "results" / "report.html").is_file()
    assert "digits_near" in capsys.readouterr().out
    assert {finding.kind for finding in Results.load(tmp_path / "results").findings} & {"chance", "classes"}


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= 700


def test_readme_links_the_addresses_of_the_project() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    links = script("project_links")
    assert {"Repository", "Documentation", "Issues"} <= links.addresses().keys()
    assert links.linked(text) == text, "run: python docs/site/project_links.py"
    assert all(f"({address})" in text for address in links.addresses().values())


@pytest.mark.integration
def test_code_of_the_page_on_results_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "results"}
    for _, body in _blocks(ROOT / "docs" / "results.md", "python"):
        exec(compile(body, "results.md", "exec"), namespace)
    assert (tmp_path / "table.tex").is_file()
    assert (tmp_path / "second" / "report.html").is_file()
    assert "p_corrected" in capsys.readouterr().out


def test_page_on_metrics_explains_the_names_that_the_command_prints() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    for metric, meaning in glossary():
        assert f"| `{metric.name}` | {metric.sets} | {metric.entry.better or '-'} | {meaning} |" in text
    for name, meaning in PREFIXES.items():
        assert f"| `{name}NAME` | {meaning} |" in text


def test_own_network_of_the_command_line_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The files and commands between the marks, as they stand, on small pictures."""
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    part = page.split("## Your own network and data\n")[1].split("\n## ")[0]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    (body,) = re.findall(r"```python\n(.*?)```", part, flags=re.DOTALL)
    Path("my_network.py").write_text(body)
    (body,) = re.findall(r"```yaml\n(.*?)```", part, flags=re.DOTALL)
    Path("own.yaml").write_text(body)
    rng = np.random.default_rng(0)
    for folder in ("train/cat", "train/dog", "val/cat", "val/dog", "other/ant", "other/bee"):
        Path("photos", folder).mkdir(parents=True)
        for index in range(6):
            pixels = rng.integers(0, 255, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(Path("photos", folder, f"{index}.png"))
    (body,) = re.findall(r"```bash\n(.*?)```", part, flags=re.DOTALL)
    for line in body.splitlines():
        assert main(shlex.split(line, comments=True)[1:]) == 0, line
    assert "my_other" in capsys.readouterr().out
    assert (tmp_path / "results" / "own" / "report.html").is_file()


def test_two_commands_do_everything() -> None:
    commands = [body.strip() for _, body in _blocks(ROOT / "README.md", "bash")]
    assert commands == ["python -m pip install . && oodlit demo", "python -m pip install tox && tox"]
    assert (ROOT / ".ci" / "run").read_text("utf-8").strip().endswith(commands[1])


def _commands() -> list[str]:
    """Every command line of oodlit in the pages: in blocks and between backticks."""
    found = []
    for page in PAGES:
        text = page.read_text("utf-8")
        lines = [line for _, body in _blocks(page, "bash") for line in body.splitlines()]
        lines += re.findall(r"`(oodlit [^`]+)`", text)
        found += [line.split("#")[0].split("&&")[-1].strip() for line in lines]
    return sorted({line for line in found if line.startswith("oodlit ")})


def test_commands_and_options_exist(capsys: pytest.CaptureFixture[str]) -> None:
    commands = _commands()
    assert len(commands) >= 12
    for line in commands:
        words = shlex.split(line.replace("\\|", "|"))[1:]
        known = next((name for name in COMMANDS if words[: len(name.split())] == name.split()), None)
        if known is None:
            assert words[0] in {"COMMAND", "--help", *(name.split()[0] for name in COMMANDS)}, line
            continue
        assert main([*known.split(), "--help"]) == 0
        text = capsys.readouterr().out
        for word in words:
            if word.startswith("--"):
                assert re.match(r"--\w+", word)[0] in text, line  # type: ignore[index]


def test_yaml_is_yaml_with_known_options(capsys: pytest.CaptureFixture[str]) -> None:
    bodies = [body for page in PAGES for _, body in _blocks(page, "yaml")]
    assert len(bodies) >= 2
    assert main(["evaluate", "--help"]) == 0
    text = capsys.readouterr().out
    for body in bodies:
        names = yaml.safe_load(body)
        assert all(f"--{name} " in text for name in names) or set(names) <= set(OF_FEATURES), body


def test_links_have_targets() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            file = page.parent / target
            if "://" not in target:  # a notebook is a page of the site
                assert file.exists() or file.with_suffix(".ipynb").exists(), f"{page.relative_to(ROOT)}: {target}"
