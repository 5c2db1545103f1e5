"""The HTML and SVG templates of the page: values are escaped, and missing values are errors."""

import math
import re

import jinja2
from markupsafe import Markup, escape

from oodlit.base.text.singular import singular


def words(name: str) -> Markup:
    """Let a name break between its words: after `_`, `.` and `/`.

    Example:
        >>> words("black_tests.<v2>")
        Markup('black_<wbr>tests.&lt;v2&gt;')
    """
    return Markup(re.sub(r"([_./])(?=\w)", r"\1<wbr>", str(escape(name))))


TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("oodlit.report", "html"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=lambda value: singular(value) if type(value) is str else value,
)
TEMPLATES.tests["nan"] = math.isnan
TEMPLATES.filters["words"] = words
TEMPLATES.filters["counted"] = lambda number, noun: singular(f"{number} {noun}")
