"""JPEGs that are decoded and transformed on the device of the run, in batches."""
