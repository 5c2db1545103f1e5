"""Views of results: tables, pools of classes, export as text."""
