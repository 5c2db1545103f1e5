"""Data modules that compose the streams of a whole run."""
