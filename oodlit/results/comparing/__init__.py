"""Compare detectors, runs and published figures."""
