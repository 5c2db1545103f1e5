"""The processes of a run, and how they end."""
