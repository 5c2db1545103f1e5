"""The sections of the page, by the kind of results: `images` and `boxes`."""
