"""What a run leaves to look at: one HTML page that needs nothing else, and figures (`oodlit.results.plots`)."""

from oodlit.report.page import render, write_report
from oodlit.report.thumbnails import clear_thumbnails, keys_to_show, save_thumbnails

__all__ = ["clear_thumbnails", "keys_to_show", "render", "save_thumbnails", "write_report"]
