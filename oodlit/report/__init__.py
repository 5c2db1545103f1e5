"""Reports of runs: HTML pages that need no other files, with the pictures they show."""

from oodlit.report.box_pictures import save_pictures
from oodlit.report.page import load_results, render, write_object_report, write_report
from oodlit.report.thumbnails import clear_thumbnails, keys_to_show, save_thumbnails

__all__ = [
    "clear_thumbnails",
    "keys_to_show",
    "load_results",
    "render",
    "save_pictures",
    "save_thumbnails",
    "write_object_report",
    "write_report",
]
