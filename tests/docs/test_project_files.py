"""Files that other programs read: workflows and the citation."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import oodlit
from tests.docs.pages import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def _read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # "on" is a word here
    return found


def _runs(workflow: dict[str, Any]) -> list[str]:
    return [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]


def test_there_are_two_workflows() -> None:
    assert [file.name for file in WORKFLOWS] == ["ci.yml", "release.yml"]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_a_workflow_is_complete(file: Path) -> None:
    """It has triggers, few permissions, a timeout, and steps that do one thing each."""
    workflow = _read(file)
    assert {"name", "on", "permissions", "jobs"} <= set(workflow)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["runs-on"] == "ubuntu-latest"
        assert int(job["timeout-minutes"]) <= 120
        assert set(job.get("permissions", {})) <= {"id-token"}
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step)
            assert re.fullmatch(r"[\w-]+/[\w-]+@[\w./]+", step.get("uses", "a/b@v1"))
    needed = {job["needs"] for job in workflow["jobs"].values() if "needs" in job}
    assert needed <= set(workflow["jobs"])


def test_continuous_integration_runs_the_script_and_nothing_else() -> None:
    workflow = _read(ROOT / ".github" / "workflows" / "ci.yml")
    assert _runs(workflow) == [".ci/run"]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    oldest = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert oldest is not None
    assert workflow["jobs"]["tests"]["strategy"]["matrix"]["python"][0] == oldest[1]


def test_a_release_is_built_checked_and_then_published_by_another_job() -> None:
    workflow = _read(ROOT / ".github" / "workflows" / "release.yml")
    assert workflow["on"] == {"push": {"tags": ["v*"]}}
    tag, *runs = _runs(workflow)
    assert "oodlit/_version.py" in tag
    assert runs == [
        "python -m pip install build twine",
        "python -m build",
        "python tests/wheel_content.py dist",
        "python -m twine check --strict dist/*",
    ]
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    assert "permissions" not in build
    assert publish["needs"] == "build"
    assert publish["permissions"] == {"id-token": "write"}
    assert "password" not in str(workflow)


def test_the_citation_is_valid() -> None:
    """It has the required keys of the Citation File Format 1.2.0, and no unknown ones."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    known = {"abstract", "keywords", "license", "type", "version"}
    assert set(citation) <= known | {"cff-version", "message", "title", "authors"}
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] == "software"
    assert citation["version"] == oodlit.__version__
    assert f'license = "{citation["license"]}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(set(author) == {"name"} for author in citation["authors"])
    assert all(isinstance(value, str) for value in [citation["message"], citation["title"], *citation["keywords"]])


def test_the_source_archive_has_what_the_tests_read() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = pyproject.split("[tool.hatch.build.targets.sdist]")[1].split("\n\n")[0]
    for name in (
        "SECURITY.md",
        "CITATION.cff",
        "CODE_OF_CONDUCT.md",
        "mkdocs.yml",
        ".github",
        ".ci",
        "tox.ini",
        "docs",
    ):
        assert f'"{name}"' in listed, name
        assert (ROOT / name).exists()
