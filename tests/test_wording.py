"""The check of the wording finds phrases where users read them, and only there."""

from pathlib import Path

import pytest

from tests import wording


def _found(folder: Path, name: str, text: str, quoted: tuple[str, ...] = ()) -> list[tuple[int, str]]:
    file = folder / name
    file.write_text(text)
    return [(hit.line, hit.phrase) for hit in wording.hits(file, quoted)]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.md", "First.\nThe run\ngoes  on, 3 ms an image.\n", [(3, "goes on"), (3, "ms an image")]),
        ("a.md", "`is told` or\n```text\nis told\n```\n<!-- is told -->\n[is fine](blamed.md)\n", []),
        ("a.py", '"""A.\n\nIs told."""\nx = "anew"\ny = f"{x} made\\n again"\n', [(3, "Is told"), (5, "made again")]),
        ("a.html", "<p class='at once'>{{ at_once }}\nsomebody</p>", [(2, "somebody")]),
    ],
)  # fmt: skip
def test_phrases_are_found_in_prose_alone(
    tmp_path: Path, name: str, text: str, expected: list[tuple[int, str]]
) -> None:
    assert _found(tmp_path, name, text) == expected


def test_quoted_phrases_are_allowed(tmp_path: Path) -> None:
    assert _found(tmp_path, "a.md", "He said so at once.", ("said so",)) == [(1, "at once")]


def test_every_phrase_is_on_the_page_with_its_replacement() -> None:
    page = (wording.ROOT / "docs" / "wording.md").read_text(encoding="utf-8")
    table = page.split("## Word list")[1].split("## Terms")[0].split("|---|---|")[1]
    rows = [row.strip("|").split("|") for row in table.strip().splitlines() if row.startswith("|")]
    avoided = " ".join(row[0] for row in rows)
    assert len(rows) >= 20
    missing = [pattern.pattern for pattern, _ in wording.PHRASES if not pattern.search(avoided)]
    assert not missing


def test_exit_code_and_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wording, "ROOT", tmp_path)
    (tmp_path / "a.md").write_text("All at once.\n")
    assert wording.main(["a.md"]) == 1
    assert "a.md:1: 'at once'; write: immediately" in capsys.readouterr().out
    (tmp_path / "a.md").write_text("Fine.\n")
    assert wording.main(["a.md"]) == 0
    with pytest.raises(FileNotFoundError):
        wording.main(["missing.md"])
