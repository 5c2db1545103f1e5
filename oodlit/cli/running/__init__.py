"""Shared code of the commands that run a prediction."""
