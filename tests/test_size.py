"""Sizes of functions, files, folders and of the whole package."""

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import oodlit

PACKAGE = Path(oodlit.__file__).parent
MAX_FUNCTION_LINES = 60
"""Lines of a function without its docstring."""
MAX_BRANCHES = 20
MAX_FILE_LINES = 400
MAX_FILES = 20
"""Files of one kind directly in one folder."""
MAX_CODE_LINES = 39_750
"""Lines of the package without docstrings, comments and blank lines. To add code beyond this, first delete some."""
BRANCHES = (ast.If, ast.IfExp, ast.For, ast.While, ast.ExceptHandler, ast.BoolOp, ast.comprehension, ast.match_case)
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


@cache
def sources() -> dict[Path, str]:
    files = [*PACKAGE.rglob("*.py"), PACKAGE.with_name("oodlit_pytest.py")]
    return {file: file.read_text(encoding="utf-8") for file in sorted(files)}


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for file, source in sources().items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                yield f"{file.name}: {node.name}", node


def lines_of_text(node: ast.AST) -> set[int]:
    """Lines of a docstring, or of another string that stands for itself."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return set(range(node.lineno, node.end_lineno + 1)) if is_text else set()


def code_lines(source: str) -> int:
    texts = set().union(*map(lines_of_text, ast.walk(ast.parse(source))))
    tokens = [t for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type not in NO_CODE]
    return len({line for token in tokens for line in range(token.start[0], token.end[0] + 1)} - texts)


def test_code_lines_are_counted_without_texts_and_comments():
    assert (
        code_lines(
            '"""A."""\n\n# B\nx = """\nC\n"""  # D\n\n\ndef f():\n    """E."""\n    return (\n        1\n    )\n'
        )
        == 7
    )


def test_functions_are_short():
    lengths = {name: f.end_lineno - f.lineno + 1 - len(lines_of_text(f.body[0])) for name, f in functions()}
    assert len(lengths) > 1000
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FUNCTION_LINES} == {}


def test_functions_have_few_branches():
    branches = {name: sum(isinstance(node, BRANCHES) for node in ast.walk(f)) for name, f in functions()}
    assert {name: number for name, number in branches.items() if number > MAX_BRANCHES} == {}


def test_files_are_short():
    lengths = {file.relative_to(PACKAGE.parent).as_posix(): source.count("\n") for file, source in sources().items()}
    assert {file: lines for file, lines in lengths.items() if lines > MAX_FILE_LINES} == {}


def test_no_part_of_a_message_stands_alone():
    """Lines of a text without brackets around them: the later lines would be lost."""
    alone = [
        f"{name}:{node.lineno}"
        for name, source in sources().items()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.JoinedStr)
    ]
    assert alone == []


def test_folders_have_few_files():
    sizes = Counter((file.parent, file.suffix) for file in PACKAGE.rglob("*.*") if file.suffix != ".pyc")
    assert {kind: number for kind, number in sizes.items() if number > MAX_FILES} == {}


def test_the_package_does_not_grow():
    assert sum(map(code_lines, sources().values())) <= MAX_CODE_LINES
