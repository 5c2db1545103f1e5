"""Pipelines of webdataset, or of one's own, as streams; and shards as a pipeline."""
