"""Settings for the whole suite."""

from hypothesis import settings

settings.register_profile("oodlit", deadline=None, max_examples=40)
settings.load_profile("oodlit")
