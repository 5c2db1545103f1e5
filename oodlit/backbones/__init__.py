"""Networks: loaded by name, their head and features found, and zero-shot classifiers made of two towers."""
