"""Detectors that need gradients or extra forward passes."""
