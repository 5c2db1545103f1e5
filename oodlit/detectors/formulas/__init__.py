"""Mathematics shared by several detectors."""
