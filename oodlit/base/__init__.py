"""Building blocks independent of OOD detection: files, processes, their errors, checks."""
