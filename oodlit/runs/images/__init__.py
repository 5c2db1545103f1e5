"""The recorder of image runs: fit, score, join, evaluate."""
