"""Detectors that measure what is outside a principal subspace."""
