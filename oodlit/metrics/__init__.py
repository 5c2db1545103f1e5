"""oodlit.metrics."""
