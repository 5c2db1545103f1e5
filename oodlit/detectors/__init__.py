"""oodlit.detectors."""
