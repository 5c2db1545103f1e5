"""Detectors made of other detectors."""
