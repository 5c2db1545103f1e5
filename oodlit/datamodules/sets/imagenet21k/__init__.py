"""ImageNet-21k as a pool of OOD classes: its classes, which of them are left out, and why."""
