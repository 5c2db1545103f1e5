"""Ranking, exact sums and thresholds, shared by all metrics."""
