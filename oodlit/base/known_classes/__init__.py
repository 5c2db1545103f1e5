"""Names of classes, and the choice of some of them."""
