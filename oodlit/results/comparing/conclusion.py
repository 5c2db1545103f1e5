"""Conclusions of a comparison of runs, in sentences."""

import pandas as pd

from oodlit.base.text.singular import singular
from oodlit.results.glossary import MEAN

UNITS = {"classes": "other OOD classes of the same kind", "images": "other images of the same classes"}
"""What a difference holds for, by the paired unit."""


def conclusions(table: pd.DataFrame) -> list[str]:
    """Return one sentence per data set and pair of runs: which run is better, with how many detectors, by which test.

    Args:
        table: The result of `compare_runs`, of several detectors.

    Example:
        >>> about = {"dataset": "near", "metric": "fpr95", "baseline": "CNN", "over": "images", "n": 900}
        >>> rows = [about | {"run": "MLP", "better": better} for better in ("MLP", "MLP", "")]
        >>> conclusions(pd.DataFrame(rows).assign(p_value=0.01, reason=""))
        ['MLP is better than CNN with 2 of 3 detectors on near; not distinguishable: 1 (FPR95, paired over 900 \
images). Expect the same on other images of the same classes.']
    """
    pairs = table.groupby(["dataset", "run", "baseline"], sort=False)
    return [_sentence(str(dataset), str(run), str(baseline), rows) for (dataset, run, baseline), rows in pairs]


def _sentence(dataset: str, run: str, baseline: str, rows: pd.DataFrame) -> str:
    first, detectors = rows.iloc[0], singular(f"{len(rows)} detectors")
    wins, losses = ((rows["better"] == name).sum() for name in (run, baseline))
    is_defined = rows["p_value"].notna()
    reasons, undefined = list(filter(None, rows.loc[is_defined, "reason"])), (~is_defined).sum()
    one, other = (run, baseline) if wins >= losses else (baseline, run)
    most, least = max(wins, losses), min(wins, losses)
    if most:
        start = f"{one} is better than {other} with {most} of {detectors} on {dataset}"
    else:
        start = f"No significant difference between {one} and {other} was found on {dataset} with {detectors}"
    rest = (len(rows) - wins - losses - undefined - len(reasons)) * bool(most)
    counts = {"worse": least, "not distinguishable": rest, "undecided": len(reasons), "undefined": undefined}
    start = "; ".join(filter(None, [start, ", ".join(f"{how}: {count}" for how, count in counts.items() if count)]))
    about = "; ".join([f"paired over {first['n']:,} {first['over']}", *reasons[:1]])
    text = f"{start} ({first['metric'].removeprefix(MEAN).upper()}, {about})."
    return f"{text} Expect the same on {UNITS[first['over']]}." if most else text
