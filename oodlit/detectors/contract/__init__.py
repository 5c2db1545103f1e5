"""What makes a detector: the base class, registry, fitting, saving and the reference to its paper."""
