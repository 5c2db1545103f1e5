"""The run: one shell around Lightning's predict loop, recorders for each kind of run, and what they share."""
