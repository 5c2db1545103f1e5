"""Detectors that measure what lies outside a principal subspace."""
