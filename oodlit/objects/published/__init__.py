"""What others have published of unknown objects, as data."""
