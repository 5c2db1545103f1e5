"""Commands about known data sets: where they are served, downloads and checks."""
