"""General building blocks, independent of OOD detection: files, processes, errors and checks."""
