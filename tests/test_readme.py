"""What README and docs show is real: code runs, commands exist, links lead somewhere."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from oodlit.cli import COMMANDS, main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "tests" / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
BLOCK = re.compile(r"(<!-- not run[^>]*-->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _blocks(page: Path, language: str) -> list[tuple[bool, str]]:
    return [(not skip, body) for skip, kind, body in BLOCK.findall(page.read_text("utf-8")) if kind == language]


def test_readme_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """All runnable blocks, in order, in one namespace and an empty folder."""
    monkeypatch.chdir(tmp_path)
    blocks = _blocks(ROOT / "README.md", "python")
    runnable = [body for run, body in blocks if run]
    assert len(blocks) == 4
    assert len(runnable) == 3
    namespace: dict[str, object] = {"__name__": "readme"}
    for body in runnable:
        exec(compile(body, "README.md", "exec"), namespace)
    assert (tmp_path / "digits-results" / "report.html").is_file()
    assert "digits_near" in capsys.readouterr().out


def test_code_that_is_not_run_compiles() -> None:
    for run, body in _blocks(ROOT / "README.md", "python"):
        if not run:
            compile(body, "README.md", "exec")


def test_readme_opens_with_the_two_commands() -> None:
    commands = [body.strip() for _, body in _blocks(ROOT / "README.md", "bash")]
    assert commands[:2] == ["python -m pip install . && oodlit demo", "python -m pip install tox && tox"]


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
        assert all(f"--{name} " in text for name in yaml.safe_load(body)), body


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"
