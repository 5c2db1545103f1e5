"""The templates of the page, HTML and SVG: every name is escaped, and a name that is missing is an error."""

import math

import jinja2

TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("oodlit.report", "html"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.tests["nan"] = math.isnan
