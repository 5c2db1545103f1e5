"""What the commands that run a prediction share."""
