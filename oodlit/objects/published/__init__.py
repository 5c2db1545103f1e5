"""Published figures of unknown objects, as data."""
