"""Make griffe, which reads docstrings for the site, treat "Example:" as a code section like "Examples:"."""

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Rename the heading, so that doctests are not read as Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)
