"""Full NINCO evaluation against a loop over scikit-learn, in one run.

50 000 ID images, 5879 OOD images in 64 classes, 20 detectors; FPR@95, AUROC, AUPR-S and AUPR-E of every class:

    python benchmarks/metrics.py                      # scikit-learn for all detectors: some minutes
    python benchmarks/metrics.py --sklearn-detectors 2    # scikit-learn for two detectors, its time scaled to all
"""

import argparse
import resource
import time

import numpy as np
import pandas as pd
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from oodlit.metrics.aupr import aupr_error_of, aupr_success_of
from oodlit.metrics.auroc import auroc_of
from oodlit.metrics.fpr import fpr_of
from oodlit.metrics.numerics.ranking import as_sorted, rank
from oodlit.results import DatasetInfo, Results
from oodlit.roles import Role

N_ID, CLASSES, N_OOD, DETECTORS = 50_000, 64, 5879, 20


def make(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores (detectors, n) float32 of ID and OOD images, and the class of every OOD image."""
    generator = np.random.default_rng(seed)
    groups = np.sort(np.concatenate([np.arange(CLASSES), generator.integers(0, CLASSES, N_OOD - CLASSES)]))
    id_scores = generator.normal(size=(DETECTORS, N_ID)).astype(np.float32)
    ood_scores = (generator.normal(size=(DETECTORS, N_OOD)) - 1.5 + 0.02 * groups).astype(np.float32)
    return id_scores, ood_scores, groups


def ours(id_scores: np.ndarray, ood_scores: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Values (detectors, classes, 4); the ID scores of a detector are sorted once."""
    values = np.empty((len(id_scores), CLASSES, 4))
    for detector, (of_id, of_ood) in enumerate(zip(id_scores, ood_scores, strict=True)):
        sorted_id = as_sorted(of_id)
        for group in range(CLASSES):
            ranking = rank(sorted_id, of_ood[groups == group])
            values[detector, group] = (
                fpr_of(ranking, tpr=0.95, rule="attained"),
                auroc_of(ranking),
                aupr_success_of(ranking),
                aupr_error_of(ranking),
            )
    return values


def sklearn(id_scores: np.ndarray, ood_scores: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The same values by the usual loop."""
    values = np.empty((len(id_scores), CLASSES, 4))
    for detector, (of_id, of_ood) in enumerate(zip(id_scores, ood_scores, strict=True)):
        for group in range(CLASSES):
            scores = np.concatenate([of_id, of_ood[groups == group]])
            is_id = np.arange(len(scores)) < len(of_id)
            fpr, tpr, _ = roc_curve(is_id, scores, drop_intermediate=False)
            values[detector, group] = (
                fpr[np.searchsorted(tpr, 0.95)],
                roc_auc_score(is_id, scores),
                average_precision_score(is_id, scores),
                average_precision_score(~is_id, -scores),
            )
    return values


def frame(id_scores: np.ndarray, ood_scores: np.ndarray, groups: np.ndarray) -> pd.DataFrame:
    """The per-image table of a run with these scores."""
    n, m = id_scores.shape[1], ood_scores.shape[1]
    columns = {
        "key": [f"val/{i:05d}" for i in range(n)] + [f"ninco/{i:05d}" for i in range(m)],
        "dataset": ["val"] * n + ["ninco"] * m,
        "group": np.concatenate([np.full(n, -1), groups]),
        "label": np.concatenate([np.arange(n) % 1000, np.full(m, -1)]),
        "prediction": np.concatenate([np.arange(n) % 1000 + (np.arange(n) % 5 == 0), np.zeros(m, dtype=int)]),
    }
    return pd.DataFrame(columns | {f"detector_{i}": np.r_[id_scores[i], ood_scores[i]] for i in range(len(id_scores))})


def peak_mib() -> float:
    """Peak resident memory of this process so far, in MiB (Linux)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Run everything once and print one line per measurement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sklearn-detectors", type=int, default=DETECTORS, help="how many detectors scikit-learn does")
    some = parser.parse_args().sklearn_detectors
    data = make()
    size = (data[0].nbytes + data[1].nbytes) / 2**20
    ours(data[0][:1, :100], data[1][:1], data[2])  # imports and first-call costs
    before = peak_mib()
    start = time.perf_counter()
    values = ours(*data)
    own = time.perf_counter() - start
    print(f"oodlit functions   {own:8.2f} s   peak memory +{peak_mib() - before:.1f} MiB, scores {size:.1f} MiB")
    start = time.perf_counter()
    reference = sklearn(data[0][:some], data[1][:some], data[2])
    scaled = (time.perf_counter() - start) * DETECTORS / some
    print(f"scikit-learn loop  {scaled:8.2f} s   measured on {some} of {DETECTORS} detectors")
    print(f"largest difference {np.abs(values[:some] - reference).max():.1e}")
    print(f"ratio              {scaled / own:8.1f}")
    table = frame(*data)
    names = [f"detector_{i}" for i in range(DETECTORS)]
    infos = [DatasetInfo("val", Role.ID), DatasetInfo("ninco", Role.OOD, tuple(f"class {i}" for i in range(CLASSES)))]
    for bootstrap in (0, 1000):
        start = time.perf_counter()
        rows = len(Results.from_scores(table, infos, names, bootstrap=bootstrap).table)
        seconds = time.perf_counter() - start
        print(
            f"Results, bootstrap={bootstrap:<5}{seconds:6.2f} s   {rows} values: all metrics, intervals, means, pooled"
        )


if __name__ == "__main__":
    main()
