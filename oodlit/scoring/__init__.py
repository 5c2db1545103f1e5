"""Score batches with every detector, and record where the time goes. Without Lightning."""
