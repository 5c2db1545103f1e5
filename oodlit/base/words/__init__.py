"""Words and their text embeddings, for detectors with negative words."""
