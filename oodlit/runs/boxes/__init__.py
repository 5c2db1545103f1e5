"""The recorder of box runs: fit, score, join, evaluate."""
