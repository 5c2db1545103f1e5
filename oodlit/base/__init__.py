"""Building blocks without knowledge of detection: files, processes, errors of other processes, checks."""
