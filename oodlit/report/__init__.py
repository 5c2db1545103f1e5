"""Reports of runs: HTML pages that need no other files, their pictures, and tables for a terminal."""

from oodlit.report.box_pictures import Mark, draw_boxes, save_pictures
from oodlit.report.headline import partial_text
from oodlit.report.page import load_results, render, write_report
from oodlit.report.pairs import pairs_table
from oodlit.report.summary import chosen_detector, summary_table
from oodlit.report.thumbnails import clear_thumbnails, keys_to_show, save_thumbnails

__all__ = [
    "Mark",
    "chosen_detector",
    "clear_thumbnails",
    "draw_boxes",
    "keys_to_show",
    "load_results",
    "pairs_table",
    "partial_text",
    "render",
    "save_pictures",
    "save_thumbnails",
    "summary_table",
    "write_report",
]
