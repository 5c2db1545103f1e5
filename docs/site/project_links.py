"""Copy the addresses in `[project.urls]` of pyproject.toml into the README: `python docs/site/project_links.py`."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def addresses() -> dict[str, str]:
    """Name of each link and its address."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = text.partition("[project.urls]")[2].partition("\n[")[0]
    return dict(re.findall(r'^(\w+) = "(.+)"$', section, re.MULTILINE))


def linked(text: str) -> str:
    """The README with these addresses."""
    for name, address in addresses().items():
        text = re.sub(rf"\[{name}\]\([^)]*\)", f"[{name}]({address})", text)
    return text


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(linked(readme.read_text(encoding="utf-8")), encoding="utf-8")
