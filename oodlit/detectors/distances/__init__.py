"""Detectors that compare features with class means, weights or training images."""
