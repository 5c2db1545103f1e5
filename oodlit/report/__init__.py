"""oodlit.report."""
