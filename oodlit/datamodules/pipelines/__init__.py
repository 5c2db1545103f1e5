"""Pipelines of webdataset, or custom ones, as streams; and shards as a pipeline."""
