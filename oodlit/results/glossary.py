"""The metrics of the table by the names that stand there, one plain line each."""

import re
from typing import NamedTuple

__all__ = ["GLOSSARY", "PREFIXES", "Entry", "entry_of"]


class Entry(NamedTuple):
    """What a name in the column `metric` means.

    Args:
        rows: Which rows it stands in.
        better: "lower", "higher", or "" where neither is better.
        function: Name in `oodlit.metrics`.
        text: One plain sentence.
    """

    rows: str
    better: str
    function: str
    text: str


GLOSSARY: dict[str, Entry] = {
    "fpr95": Entry(
        "OOD, unit tests",
        "lower",
        "fpr_at_tpr",
        "share of these images accepted at the threshold that keeps 95 % of ID",
    ),
    "auroc": Entry(
        "OOD", "higher", "auroc", "chance that an ID image scores higher than one of these; ties count half"
    ),
    "aupr_s": Entry("OOD", "higher", "aupr_success", "average precision with ID as the positive class"),
    "aupr_e": Entry("OOD", "higher", "aupr_error", "average precision with OOD as the positive class"),
    "detection_error": Entry(
        "OOD", "lower", "detection_error", "least mean of rejected ID and accepted OOD shares over all thresholds"
    ),
    "oscr": Entry(
        "OOD",
        "higher",
        "oscr",
        "area under the share of ID accepted and rightly classified, over the share of OOD accepted",
    ),
    "fs_fpr95": Entry("OOD", "lower", "fpr_at_tpr", "full spectrum: fpr95 with shifted images counted as ID"),
    "fs_auroc": Entry("OOD", "higher", "auroc", "full spectrum: auroc with shifted images counted as ID"),
    "der95": Entry(
        "ID, OOD, shift",
        "lower",
        "detection_error_rate",
        "share of right images rejected and wrong or OOD images accepted, at the threshold that keeps 95 % of the"
        " rightly classified training images",
    ),
    "der99": Entry("ID, OOD, shift", "lower", "detection_error_rate", "the same at the threshold that keeps 99 %"),
    "accepted95": Entry("shift", "", "fpr_at_tpr", "share of shifted images accepted at the threshold of fpr95"),
    "accuracy": Entry("ID, shift", "higher", "accuracy", "share of labelled images that the classifier gets right"),
    "id_auroc": Entry(
        "ID",
        "higher",
        "id_auroc",
        "chance that a rightly classified ID image scores higher than a wrongly classified one",
    ),
    "aurc": Entry("ID", "lower", "aurc", "mean share of errors among the k highest scores, over all k"),
    "augrc": Entry(
        "ID", "lower", "augrc", "area under the share of undetected errors, over the share of images accepted"
    ),
    "unit_test_failures": Entry(
        "unit tests", "lower", "unit_test_failures", "number of unit tests of which more than 10 % is accepted"
    ),
    "unit_test_passes": Entry("unit tests", "higher", "unit_test_failures", "number of the other unit tests"),
}
"""By name; 95 stands for whatever share the run was made with."""

PREFIXES: dict[str, str] = {
    "mean_": "of a set with OOD classes: mean of the values of its classes, each class counting the same (headline)",
    "pooled_": "of a set with OOD classes: all its images together, whatever their class",
}


def entry_of(name: str) -> Entry | None:
    """What a name of the table means; None if it is not known.

    Example:
        >>> entry_of("mean_fs_fpr90").better
        'lower'
    """
    plain = name
    for prefix in PREFIXES:
        plain = plain.removeprefix(prefix)
    if plain in GLOSSARY:
        return GLOSSARY[plain]
    return GLOSSARY.get(re.sub(r"(fpr|der|accepted)[\d.]+$", r"\g<1>95", plain))
