"""Whole runs as the command line makes them: quiet, with one progress bar, ending in results, page and table."""
