"""The record of a run of boxes."""

from typing import Any

import msgspec

from oodlit.objects.metrics.settings import ObjectSettings
from oodlit.results.record_parts import written
from oodlit.results.run_record import RunRecord, as_numbers


class BoxFit(msgspec.Struct, frozen=True):
    """The boxes that detectors were fitted on.

    Args:
        on: "boxes" or "objects".
        confidence: Least confidence of a box.
        boxes: Number of boxes.
    """

    on: str | None = None
    confidence: float | None = None
    boxes: int = 0


class BoxRunRecord(RunRecord, frozen=True, omit_defaults=True, kw_only=True):
    r"""What is known about a run of boxes.

    Args:
        class_names: The ID classes in the order of the logits; empty if unknown.
        settings: How the table was computed.
        id_quality: Mean average precision of the object detector on the ID set, by name; empty if not computed.
        t_star_rule: Where t\* comes from.
        model: Name of the object detector.
        min_confidence: Least confidence of the boxes that the run kept; None if unknown.
        fit: What detectors were fitted on; None if unknown.
        fit_on: The same for results of files: "boxes" or "objects".
        files: By data set, the files of its predictions and annotations.
        train_files: Files of the training images.
        ms_per_box: By detector, milliseconds per box.
    """

    kind: str = written(lambda: "objects")
    class_names: list[str] = written(list)
    settings: ObjectSettings = written(ObjectSettings)
    id_quality: dict[str, float] = written(dict)
    t_star_rule: str = ""
    model: str = ""
    min_confidence: float | None = None
    fit: BoxFit | None = None
    fit_on: str | None = None
    files: dict[str, Any] = msgspec.field(default_factory=dict)
    train_files: Any = None
    ms_per_box: dict[str, float] = msgspec.field(default_factory=dict)

    @classmethod
    def restore_numbers(cls, entries: dict[str, Any]) -> None:
        """Restore infinities of tau, too."""
        super().restore_numbers(entries)
        if "id_quality" in entries:
            entries["id_quality"] = as_numbers(entries["id_quality"])
        if (entries.get("settings") or {}).get("tau") is not None:
            entries["settings"] = entries["settings"] | {"tau": as_numbers(entries["settings"]["tau"])}
