"""Images that are made from others, or from nothing: corruptions and unit tests."""
