"""Run notebooks and convert them to pages, without Jupyter.

`python docs/site/notebook_page.py docs/notebooks/quickstart.ipynb` runs the cells and stores their output in the file.
Converting a notebook to a page requires nothing but Python.
"""

import ast
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

Notebook = dict[str, Any]


def as_page(notebook: Notebook, name: str) -> str:
    """Convert a notebook to Markdown: text, code, and output.

    Args:
        notebook: The content of the file.
        name: The file name, for the link.
    """
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [_as_text(output) for output in cell.get("outputs", ())]
    parts.insert(2, f"This page is a notebook: [{name}]({name}).")
    return "\n\n".join(parts) + "\n"


def _as_text(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        text = "".join(output["text"])
    elif "image/png" in output["data"]:
        return f"![Output of the cell above](data:image/png;base64,{output['data']['image/png'].strip()})"
    else:
        text = "".join(output["data"]["text/plain"])
    return f"```text\n{text.rstrip()}\n```"


def run(notebook: Notebook) -> Notebook:
    """Run a notebook in the current folder and return it with its outputs, in the format of Jupyter.

    The output of a cell is what it prints and the value of its last line; a figure is stored as PNG.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    cells, count = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            outputs = _outputs("".join(cell["source"]), namespace, count)
            cells.append({**cell, "execution_count": count, "outputs": outputs})
        else:
            cells.append(cell)
    return {**notebook, "cells": cells}


def _outputs(source: str, namespace: dict[str, Any], count: int) -> list[dict[str, Any]]:
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    value = None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, f"cell {count}", "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {count}", "eval"), namespace)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append(
            {"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(keepends=True)}
        )
    if value is not None:
        data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "savefig"):
            picture = io.BytesIO()
            value.savefig(picture, format="png", dpi=60, metadata={"Software": None})
            data["image/png"] = base64.b64encode(picture.getvalue()).decode() + "\n"
        outputs.append({"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data})
    return outputs


def main(path: str) -> None:
    """Run a notebook in an empty folder and store its outputs."""
    file = Path(path).absolute()
    notebook = json.loads(file.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        notebook = run(notebook)
        os.chdir(file.parent)
    file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
