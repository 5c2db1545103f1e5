"""Read annotations and predicted boxes from files."""
