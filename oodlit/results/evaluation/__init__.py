"""From per-image scores to the tidy table."""
