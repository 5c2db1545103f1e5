"""The recorder of feature caches."""
