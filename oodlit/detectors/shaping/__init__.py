"""Detectors that reshape features or weights before the head."""
