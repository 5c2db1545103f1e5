"""Conclusions of a comparison of runs, in sentences."""

import pandas as pd

from oodlit.base.text.singular import singular
from oodlit.results.glossary import MEAN

UNITS = {"classes": "other classes of this kind", "images": "other images of the same classes"}
"""What a difference holds for, by the paired unit."""


def conclusions(table: pd.DataFrame) -> list[str]:
    """Return one sentence per data set and pair of runs: which run is better, with how many detectors, by which test.

    Args:
        table: The result of `compare_runs`, of several detectors.

    Example:
        >>> about = {"dataset": "near", "metric": "fpr95", "baseline": "CNN", "over": "images", "n": 900}
        >>> rows = [about | {"run": "MLP", "better": better} for better in ("MLP", "MLP", "")]
        >>> conclusions(pd.DataFrame(rows).assign(p_value=0.01, reason=""))
        ['MLP is better than CNN with 2 of 3 detectors on near, and not distinguishable with 1 (FPR95, paired over 900 \
images). Expect the same on other images of the same classes.']
    """
    pairs = table.groupby(["dataset", "run", "baseline"], sort=False)
    return [_sentence(str(dataset), str(run), str(baseline), rows) for (dataset, run, baseline), rows in pairs]


def _sentence(dataset: str, run: str, baseline: str, rows: pd.DataFrame) -> str:
    total, first = len(rows), rows.iloc[0]
    wins, losses = ((rows["better"] == name).sum() for name in (run, baseline))
    undefined, undecided = rows["p_value"].isna().sum(), ((rows["reason"] != "") & rows["p_value"].notna()).sum()
    one, other = (run, baseline) if wins >= losses else (baseline, run)
    most, least = max(wins, losses), min(wins, losses)
    detectors = singular(f"{total} detectors")
    if most:
        start = f"{one} is better than {other} with {most} of {detectors} on {dataset}"
    else:
        start = f"{one} and {other} are not distinguishable with any of {detectors} on {dataset}"
    rest = total - most - least - undefined - undecided
    counts = {"worse": least, "not distinguishable": rest if most else 0}
    counts |= {"undecided": undecided, "undefined": undefined}
    parts = [f"{how} with {count}" for how, count in counts.items() if count]
    tail = "".join(f"{', and' if part is parts[-1] else ','} {part}" for part in parts)
    about = f"paired over {first['n']:,} {first['over']}"
    reason = next((text for text in rows["reason"] if text), "") if undecided else ""
    text = f"{start}{tail} ({first['metric'].removeprefix(MEAN).upper()}, {about}{f'; {reason}' if reason else ''})."
    return f"{text} Expect the same on {UNITS[first['over']]}." if most else text
