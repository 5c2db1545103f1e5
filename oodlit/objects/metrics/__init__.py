"""Match boxes with objects, and compute the open-set metrics."""
