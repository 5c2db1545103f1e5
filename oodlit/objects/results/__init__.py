"""Results of box runs: tables, storage, summary, page."""
