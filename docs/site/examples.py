"""An extension of griffe, which reads docstrings for the site: "Example:" is a section of code, as "Examples:" is."""

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Write the heading as griffe knows it; otherwise doctests would be read as Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one object of the package."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)
