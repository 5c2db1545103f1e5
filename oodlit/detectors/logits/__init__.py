"""Detectors that read logits."""
