"""Detectors that estimate the density of training features."""
