"""The HTML and SVG templates of the page: values are escaped, and missing values are errors."""

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
