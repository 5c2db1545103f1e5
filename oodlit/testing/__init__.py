"""oodlit.testing."""
