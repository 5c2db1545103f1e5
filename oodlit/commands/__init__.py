"""The commands of `oodlit`, one plain function each. Heavy imports stay inside the functions: `--help` needs none."""
