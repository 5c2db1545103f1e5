"""The demos of `oodlit demo`, on data that requires no download."""
