"""Detectors for zero-shot classifiers, whose head contains text embeddings."""
