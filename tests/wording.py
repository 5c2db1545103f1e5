"""Check the wording of user-facing text: `python tests/wording.py PATH ...`. Requires nothing but Python.

It reads the prose of Markdown files, the strings and docstrings of Python files, and the text of templates, and reports
every phrase of the word list with its replacement. docs/wording.md explains the list.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
CHECKED = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CODE_OF_CONDUCT.md",
    "tests/README.md",
    "docs",
    "oodlit",
    "oodlit_pytest.py",
    "benchmarks",
]
"""What is checked if no path is given."""
WORDS = {
    r"go(?:es)? on|went on": "resumes, continues",
    r"(?:breaks?|broke|broken) off|(?:was|were) ended": "is interrupted",
    r"killed(?! by)": "interrupted",
    r"(?:has|have|had|came|comes?|coming) (?:come )?to (?:its|an|their) end": "is complete, has finished",
    r"anew|made again": "again, rebuilt, from scratch",
    r"(?:is|are|was|were|lies?) there(?! (?:an?|any|no)\b)": "exists, was found",
    r"lack(?:s|ed|ing)?": "is missing",
    r"of which .{0,40}\b(?:is|are) missing": "is missing",
    r"(?:is|are|was|were) needed": "requires ...; missing ...; ... must be given",
    r"(?:is|are|was|were) none of": "must be one of",
    r"(?<!there )(?:is|are) no (?!longer|more|less|better|worse|different|larger|smaller|slower|faster)\w+": "is not a",
    r"(?:is|are|was|were) told|sa(?:ys|id)": "reports, prints, warns, states",
    r"(?<=\d)\s?\w* an image": "per image",
    r"further (?:forward )?passes": "extra forward passes",
    r"what holds": "what contains; keep one copy per",
    r"so many": "this many, N",
    r"of (?:its|one's|your|their|my|our) own|one's own": "its own, your own, custom",
    r"(?:be )?told (?:from|apart)": "is not distinguishable from",
    r"whoever|somebody": "the caller, another process, the user",
    r"in words": "as text",
    r"found by (?:itself|themselves)": "detected automatically",
    r"at once": "immediately; in one call",
    r"(?:the|conformance) kit(?! fox)": "the conformance suite",
    r"(?:hold|holds|held|holding) (?:\w+ ){0,5}to (?:\w+ )?limits?": "check against limits",
    r"blamed": "explained",
}
"""Phrase to avoid, as a regular expression of whole words, and what to write."""
QUOTED: dict[str, tuple[str, ...]] = {"docs/wording.md": ("",)}
"""Phrases that a file may contain because it quotes them; an empty phrase exempts the file."""
PHRASES = [
    (re.compile(r"\b(?:" + re.sub(r" (?!\))", r"\\s+", phrase) + r")\b", re.IGNORECASE), better)
    for phrase, better in WORDS.items()
]


class Text(NamedTuple):
    """A piece of text, and the lines of its file on which it begins and ends."""

    first: int
    last: int
    text: str


class Hit(NamedTuple):
    """A phrase to avoid."""

    line: int
    phrase: str
    better: str


def python_texts(source: str) -> Iterator[Text]:
    """Strings of at least two words, docstrings included; the values within an f-string are left out."""
    tree = ast.parse(source)
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        text = ""
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            text = node.value
        if " " in text.strip():
            yield Text(node.lineno, node.end_lineno or node.lineno, _without_code(text))


def markdown_texts(source: str) -> Iterator[Text]:
    """Prose: no fenced blocks, comments, inline code or link targets."""
    yield Text(1, source.count("\n") + 1, re.sub(r"(?<=\])\([^)\s]*\)", "", _without_code(source)))


def template_texts(source: str) -> Iterator[Text]:
    """Text between tags and expressions."""
    text = _blanked(r"<(?:style|script)\b.*?</(?:style|script)>|<[^>]*>|\{[{%#].*?[}%#]\}", source)
    yield Text(1, source.count("\n") + 1, text)


def _without_code(text: str) -> str:
    return _blanked(r"^```.*?^```$|<!--.*?-->|``.*?``|`[^`]*`|^ *>>> .*?$", text)


def _blanked(pattern: str, text: str) -> str:
    """The text without the matches, on the same lines."""
    return re.sub(pattern, lambda match: "\n" * match[0].count("\n") or "`", text, flags=re.MULTILINE | re.DOTALL)


READERS = {".py": python_texts, ".md": markdown_texts, ".html": template_texts, ".svg": template_texts}


def hits(file: Path, quoted: tuple[str, ...] = ()) -> list[Hit]:
    """Phrases to avoid in a file, in the order of its lines."""
    found = []
    for first, last, text in READERS[file.suffix](file.read_text(encoding="utf-8")):
        for phrase in quoted:
            text = text.replace(phrase, "")  # noqa: PLW2901
        for pattern, better in PHRASES:
            for match in pattern.finditer(text):
                line = min(first + text.count("\n", 0, match.start()), last)
                found.append(Hit(line, " ".join(match[0].split()), better))
    return sorted(found)


def files(paths: list[str]) -> list[Path]:
    """The files below the paths that can be read.

    Raises:
        FileNotFoundError: A path does not exist.
    """
    found = []
    for path in (ROOT / name for name in paths):
        if not path.exists():
            raise FileNotFoundError(path)
        found += sorted(path.rglob("*")) if path.is_dir() else [path]
    return [file for file in found if file.suffix in READERS]


def main(paths: list[str]) -> int:
    """Print every phrase to avoid; 1 if there is one."""
    count = 0
    for file in files(paths or CHECKED):
        name = file.relative_to(ROOT).as_posix()
        quoted = QUOTED.get(name, ())
        for hit in [] if "" in quoted else hits(file, quoted):
            print(f"{name}:{hit.line}: '{hit.phrase}'; write: {hit.better}")
            count += 1
    print(f"{count} phrases to avoid (docs/wording.md)" if count else "wording: no phrase to avoid")
    return int(bool(count))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
