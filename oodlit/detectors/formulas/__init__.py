"""Mathematics that several detectors share."""
