"""Operating points: what a threshold of each detector means for traffic with an assumed fraction of OOD images."""

from collections.abc import Iterable
from typing import Any

import pandas as pd
import torch

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.fractions import ShareLike
from oodlit.base.roles import Role
from oodlit.metrics.joint import OperatingPoint, joint_augrc, operating_point
from oodlit.results.display_names import display_names
from oodlit.results.info import id_dataset
from oodlit.results.run_results import RunResults

Scores = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""ID scores, OOD scores, and whether each ID prediction is correct."""


def operating_points(
    results: RunResults,
    dataset: str | None = None,
    *,
    prior: ShareLike,
    max_risk: ShareLike | None = None,
    coverage: ShareLike | None = None,
    tpr: ShareLike | None = None,
) -> pd.DataFrame:
    """Compare the detectors at an operating point, the lowest joint AUGRC first.

    Args:
        results: The run.
        dataset: Name of an OOD set; None = the only one. All its images weigh the same.
        prior: Assumed fraction of OOD images in the traffic, in [0, 1].
        max_risk: Accept as much as possible with at most this fraction of errors among the accepted images.
        coverage: Accept at least this fraction of the images.
        tpr: Accept at least this fraction of the ID images; the TPR of the run if nothing else is given.

    Returns:
        One row per detector: `detector, threshold, coverage, risk, risk_low, risk_high, tpr, fpr, joint_augrc, reason`.
        If no threshold has a risk as low as `max_risk`, the numbers are NaN, and `reason` is that message.

    Raises:
        UnknownNameError: There is no such data set.
        InvalidArgumentError: The set is not an OOD set, several exist and none is named, the ID images have no labels,
            or an option is invalid.
    """
    name = ood_set(results, dataset)
    wishes = {"max_risk": max_risk, "coverage": coverage, "tpr": tpr}
    if all(value is None for value in wishes.values()):
        wishes["tpr"] = results.settings.tpr
    rows = []
    for detector, (inside, outside, correct) in scores_of(results, results.detectors, name).items():
        options = {"is_correct": correct, "prior": prior}
        area = joint_augrc(inside, outside, **options)  # type: ignore[arg-type]
        confidence = results.settings.confidence
        point, reason = OperatingPoint(*[float("nan")] * 7), ""
        try:
            point = operating_point(inside, outside, **options, **wishes, confidence=confidence)  # type: ignore[arg-type]
        except InvalidArgumentError as error:
            if "no threshold has a risk" not in str(error):
                raise
            reason = str(error).removeprefix("operating_point: ")
        rows.append({"detector": detector, **point._asdict(), "joint_augrc": area, "reason": reason})
    frame = pd.DataFrame(rows).sort_values("joint_augrc", kind="stable", ignore_index=True)
    frame.attrs["note"] = f"{100 * float(prior):g} % OOD images like those of {name}"
    return frame


def scores_of(results: RunResults, detectors: Iterable[str], dataset: str) -> dict[str, Scores]:
    """Scores and correct predictions behind the joint risk, by detector.

    Raises:
        InvalidArgumentError: ID images have no label or no prediction.
    """
    inside, outside = results.images(id_dataset(results.datasets).name), results.images(dataset)
    if len(unlabeled := inside[(inside["label"] < 0) | (inside["prediction"] < 0)]):
        raise InvalidArgumentError(
            "the joint risk requires labels and predictions of all ID images. Images of"
            f" {id_dataset(results.datasets).name!r} without a label or a prediction: {len(unlabeled)} of {len(inside)}"
        )
    correct = torch.tensor((inside["label"] == inside["prediction"]).to_numpy())
    both = {name: [torch.tensor(part[name].to_numpy()) for part in (inside, outside)] for name in detectors}
    return {name: (known, unknown, correct) for name, (known, unknown) in both.items()}


def operating_sentence(
    results: RunResults, dataset: str | None = None, *, prior: ShareLike = 0.01, choice: str = ""
) -> str:
    """The best detector by joint AUGRC, and what it does at the TPR of the run.

    Such as: "If 1 % of the images are unknown, like those of near, KNN has the best joint AUGRC. At the threshold of
    the run, it accepts 94.1 % of the images, and 0.9 % [0.4, 1.9] of the accepted ones are errors". Ties are listed. If
    `choice`, the display name of the detector to choose, is not among them, a sentence states why.
    """
    dataset = ood_set(results, dataset)
    points = operating_points(results, dataset, prior=prior)
    return point_sentence(points.replace({"detector": display_names(results.run)}), dataset, prior, choice)


def point_sentence(points: pd.DataFrame, dataset: str, prior: ShareLike, choice: str = "") -> str:
    """Describe the best row of `operating_points`; see `operating_sentence`."""
    point: Any = points.iloc[0]
    if pd.isna(point.risk):
        return f"If all images are unknown, like those of {dataset}, {point.detector} accepts none of them"
    tied = points.loc[points["joint_augrc"] == point.joint_augrc, "detector"].tolist()
    tie = f" (tied with {', '.join(tied[1:])})" if tied[1:] else ""
    why = f". The choice by FPR is {choice}; joint AUGRC also counts wrong predictions"
    low, high = (f"{100 * point[end]:.1f}" for end in ("risk_low", "risk_high"))
    return (
        f"If {100 * float(prior):g} % of the images are unknown, like those of {dataset}, {point.detector} has the"
        f" best joint AUGRC{tie}. At the threshold of the run, it accepts {100 * point.coverage:.1f} % of the images,"
        f" and {100 * point.risk:.1f} % [{low}, {high}] of the accepted ones are errors"
        f"{'' if choice in ('', *tied) else why}"
    )


def are_labeled(results: RunResults) -> bool:
    """Whether there are ID images, and all have a label and a prediction, as the joint risk requires."""
    inside = results.images(id_dataset(results.datasets).name)
    return len(inside) > 0 and bool(((inside["label"] >= 0) & (inside["prediction"] >= 0)).all())


def ood_set(results: RunResults, dataset: str | None) -> str:
    """The OOD set with this name, or the only one; see `operating_points`."""
    names = [info.name for info in results.datasets if info.role is Role.OOD]
    if dataset is None and len(names) == 1:
        return names[0]
    if dataset is None or results.dataset(dataset).role is not Role.OOD:
        wish, known = f"expected dataset to be an OOD set, got {dataset!r}", ", ".join(names) or "none"
        raise InvalidArgumentError(f"operating_points: {wish}; OOD sets of these results: {known}")
    return dataset
