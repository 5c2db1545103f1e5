"""Risk and coverage if an assumed fraction of the images is unknown."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from oodlit.base.roles import Role
from oodlit.metrics.joint_ranking import JointRanking, joint_augrc_of, risk_curve_of
from oodlit.report.detector_choice import choose
from oodlit.report.headline import percent_text, share_text
from oodlit.report.section import USUAL, VISIBLE, Section, Shown
from oodlit.report.svg import line_chart
from oodlit.results.glossary import three_digits
from oodlit.results.plots.charts import Curves, Line
from oodlit.results.views.operating import are_labeled, operating_points, point_sentence, scores_of

PRIOR = 0.01
"""Assumed fraction of unknown images if the run states none."""
PRIORS = tuple(np.linspace(0, 0.2, 41).tolist())
"""Fractions of unknown images in the curve over the prior."""
LEAST = 0.1
"""Smallest coverage of the curves; below it, few images decide about the risk."""
LINES, BEST = 6, 3
"""Largest number of lines, and how many of them are the best; the others are usual baselines."""


def sections(shown: Shown) -> Iterator[Section]:
    """Yield one section if the ID images have labels and there are OOD images."""
    results = shown.results
    names = [info.name for info in shown.sets(Role.OOD) if results.run.counts.get(info.name)]
    if names and shown.detectors and are_labeled(results):
        prior = (*results.settings.priors, PRIOR)[0]
        content = {"prior": share_text(prior), "sets": [_of_set(shown, name, prior) for name in names]}
        yield Section("risk", "Errors if some images are unknown", "risk and coverage", "parts/risk.html", content)


def _of_set(shown: Shown, dataset: str, prior: float) -> dict[str, Any]:
    """Both pictures, the sentence and the table of one OOD set."""
    points, choice = operating_points(shown.results, dataset, prior=prior), choose(shown)
    names, is_usual = points["detector"], points["detector"].str.lower().isin(USUAL)
    drawn, in_table = [*names[:BEST], *names[BEST:][is_usual[BEST:]]][:LINES], is_usual | (points.index < VISIBLE)
    colours = {name: f"--s{place}" for place, name in enumerate(drawn)}
    joint = {name: JointRanking.of(*own) for name, own in scores_of(shown.results, drawn, dataset).items()}
    values = (points[name].tolist() for name in ("detector", "coverage", "risk"))
    marks = {name: (coverage, error) for name, coverage, error in zip(*values, strict=True)}
    return {
        "name": dataset,
        "sentence": point_sentence(points, dataset, prior, choice.detector if choice else ""),
        "over_priors": line_chart(_over_priors(joint), colours),
        "over_coverage": line_chart(_over_coverage(joint, marks, prior), colours),
        "legend": colours,
        "best": f"{three_digits(_least(joint[drawn[0]], prior))} %",
        "rows": [_row(row) for row in points[in_table].itertuples()],
        "others": int((~in_table).sum()),
    }


def _least(ranking: JointRanking, prior: float) -> float:
    """Joint AUGRC of a perfect detector."""
    return (1 - (1 - prior) * ranking.accuracy) ** 2 / 2


def _over_priors(joint: Mapping[str, JointRanking]) -> Curves:
    """Joint AUGRC above the value of a perfect detector, by prior."""
    above = {n: [joint_augrc_of(own, prior) - _least(own, prior) for prior in PRIORS] for n, own in joint.items()}
    title = "Joint AUGRC minus that of a perfect detector"
    return Curves(title, "unknown images", title, tuple(Line(n, PRIORS, tuple(own)) for n, own in above.items()))


def _over_coverage(joint: Mapping[str, JointRanking], marks: Mapping[Any, tuple[float, float]], prior: float) -> Curves:
    """Fraction of errors among the accepted images, by the fraction of accepted images."""
    lines = []
    for name, ranking in joint.items():
        curve = risk_curve_of(ranking, prior)
        kept = curve.coverage >= LEAST
        x, y = (tuple(values[kept].tolist()) for values in (curve.coverage, curve.risk))
        lines.append(Line(name, x, y, () if np.isnan(marks[name]).any() else (marks[name],)))
    return Curves("Errors among the accepted images", "accepted images", "errors among them", tuple(lines))


def _row(row: Any) -> dict[str, str]:
    interval = "" if pd.isna(row.risk_low) else f"[{100 * row.risk_low:.1f}, {100 * row.risk_high:.1f}]"
    values = {name: percent_text(getattr(row, name)) for name in ("coverage", "risk", "tpr", "fpr")}
    return {"detector": row.detector, **values, "interval": interval, "augrc": f"{three_digits(row.joint_augrc)} %"}
