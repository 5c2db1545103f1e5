"""ImageNet-21k as a pool of OOD classes: its classes, and which are excluded for which reason."""
