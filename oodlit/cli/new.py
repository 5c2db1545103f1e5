"""`oodlit new detector`: a package with a detector, its test, its page and its entry point."""

from importlib import resources
from pathlib import Path
from string import Template

from oodlit.base.errors import UsageError

_FILES = {
    "pyproject.txt": "pyproject.toml",
    "module.txt": "$module.py",
    "test.txt": "tests/test_$module.py",
    "page.txt": "docs/$module.md",
    "readme.txt": "README.md",
}
"""Files of the template, and where each is written."""


def detector(name: str, *, fitted: bool = False, out: Path | None = None) -> None:
    """Write a package with a new detector.

    The package contains the detector, its tests, a documentation page, and a README that explains what to edit. Its
    entry point lets every command find the installed detector by name.

    Args:
        name: name of the class, such as MyScore
        fitted: start from a detector that is fitted on training images
        out: new folder (default: oodlit-NAME)
    """
    if not (name.isidentifier() and name.isascii() and name[0].isupper()):
        raise UsageError(f"expected the name of a class with an initial capital (A-Z), such as MyScore, got {name!r}")
    from oodlit.base.atomic import write_text
    from oodlit.cli.console import say
    from oodlit.detectors import detectors
    from oodlit.detectors.contract.class_paths import snake_case

    if (key := snake_case(name)) in detectors():
        raise UsageError(f"oodlit already has a detector {key!r}; choose another name")
    words = {"name": name, "key": key, "module": f"oodlit_{key}", "package": f"oodlit-{key.replace('_', '-')}"}
    folder = out or Path(words["package"])
    if folder.exists():
        raise UsageError(f"{folder} already exists; choose another folder with --out")
    template = resources.files("oodlit.cli") / "template"
    for source, place in _FILES.items():
        other = template / f"fitted_{source}"
        chosen = other if fitted and other.is_file() else template / source
        text = Template(chosen.read_text(encoding="utf-8")).substitute(words)
        file = folder / Template(place).substitute(words)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, text)
    say(f"{folder}: edit {words['module']}.py, its test and its page (see README.md), then run")
    say(f"  pip install -e '{folder}[test]' && pytest {folder} && oodlit check --plugins")
