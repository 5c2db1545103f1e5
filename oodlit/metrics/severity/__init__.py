"""Metrics by level of severity (COOD)."""
