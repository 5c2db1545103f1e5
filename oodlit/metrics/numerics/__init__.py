"""Ranking, exact sums and thresholds that all metrics share."""
