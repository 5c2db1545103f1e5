"""Results on disk: score table, storage, unfinished runs."""
