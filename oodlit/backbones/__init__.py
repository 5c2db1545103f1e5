"""Networks: loading by name, detection of head and features, zero-shot classifiers from two towers."""
