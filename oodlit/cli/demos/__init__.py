"""Demonstrations on data that needs no download: `oodlit demo` and `oodlit demo imagenet`."""
