"""Labels of figures."""


def short(name: str, length: int = 29) -> str:
    """Shorten a name to `length` characters."""
    return name if len(name) <= length else f"{name[: length - 1]}…"


def pretty(metric: str) -> str:
    """The name of a metric as text.

    Example:
        >>> pretty("mean_fpr95"), pretty("pooled_auroc")
        ('mean FPR@95', 'pooled AUROC')
    """
    return metric.replace("_", " ").replace("fpr", "FPR@").replace("der", "DER@").replace("auroc", "AUROC")
