"""Names as figures show them."""


def short(name: str, length: int = 29) -> str:
    """At most `length` characters of a name."""
    return name if len(name) <= length else f"{name[: length - 1]}…"


def pretty(metric: str) -> str:
    """The name of a metric in words.

    Example:
        >>> pretty("mean_fpr95"), pretty("pooled_auroc")
        ('mean FPR@95', 'pooled AUROC')
    """
    text = metric.replace("_", " ")
    for name in ("fpr", "der"):
        text = text.replace(name, f"{name.upper()}@")
    return text.replace("auroc", "AUROC")
