"""Data modules with all streams of a run."""
