"""Decode and transform JPEGs in batches on the device of the run."""
