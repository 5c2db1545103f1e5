"""The metrics of boxes and their meaning, by name."""

from collections.abc import Mapping

from oodlit.metrics.entry import MetricEntry
from oodlit.metrics.registry import entries
from oodlit.metrics.settings import percent
from oodlit.objects import metrics
from oodlit.objects.metrics.settings import ObjectSettings


def box_metrics(settings: ObjectSettings) -> Mapping[str, MetricEntry]:
    """Every metric by its name in a table made with these settings, in the order of the table.

    Example:
        >>> list(box_metrics(ObjectSettings(tpr=0.9)))[3:6]
        ['auroc', 'fpr90', 'auroc_hit']
    """
    return {entry.name.format(share=percent(settings.tpr)): entry for entry in entries(metrics)}


def meaning(name: str, settings: ObjectSettings) -> str:
    """Return the description of a metric; an empty text if the name is unknown.

    Example:
        >>> meaning("fpr95_hit", ObjectSettings())
        'fpr95 of the boxes that hit an annotated object, in ID and OOD images'
    """
    entry = box_metrics(settings).get(name)
    return "" if entry is None else entry.text.format(share=percent(settings.tpr), recall=f"{settings.recall:g}")
