"""Generated images: corruptions and unit tests."""
