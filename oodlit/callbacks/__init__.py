"""oodlit.callbacks."""
