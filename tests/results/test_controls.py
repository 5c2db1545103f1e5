"""Controls on constructed cases: a leak, a detector of shift, an untrained network, a good detector."""

import hashlib

import numpy as np
import pandas as pd
import pytest

from oodlit.results import DatasetInfo, Results, controls
from oodlit.results.comparing.controls import control_findings
from oodlit.roles import Role

SETS = [
    DatasetInfo("train", Role.TRAIN),
    DatasetInfo("val", Role.ID),
    DatasetInfo("far", Role.OOD, ("cat", "dog")),
    DatasetInfo("shifted", Role.SHIFT),
]
N = 400


def run(seed: int = 0, *, trained: bool = True, **options: object) -> Results:
    """Good: notices OOD images. Shift: notices shifted images. Bank: keeps the training images. Leak: reads the key."""
    rng = np.random.default_rng(seed)
    frames = []
    for info in SETS:
        frame = pd.DataFrame({"key": [f"{info.name}/{i:04d}" for i in range(N)], "dataset": info.name})
        frame["group"] = np.arange(N) % 2 if info.class_names else -1
        frame["label"] = np.arange(N) % 3 if info.role is not Role.OOD else -1
        frame["prediction"] = rng.integers(0, 3, N) if info.role is Role.OOD else np.arange(N) % 3 + (np.arange(N) == 0)
        ood, shift, train = info.role is Role.OOD, info.role is Role.SHIFT, info.role is Role.TRAIN
        frame["good"] = rng.normal(size=N) - 2.0 * ood - 0.3 * shift if trained else rng.normal(size=N)
        frame["shift"] = rng.normal(size=N) - 0.5 * ood - 2.0 * shift
        frame["bank"] = rng.normal(size=N) - 2.0 * ood + 5.0 * train
        frame["leak"] = rng.normal(size=N) - 2.0 * ood
        frames.append(frame)
    frame = pd.concat(frames, ignore_index=True)
    first = [hashlib.blake2b(key.encode(), digest_size=1).digest()[0] % 2 for key in frame["key"]]
    frame["leak"] += np.where(frame["dataset"] == "val", first, 0)
    return Results.from_scores(frame, SETS, ["good", "shift", "bank", "leak"], bootstrap=0, **options)


def value(frame: pd.DataFrame, detector: str, control: str) -> float:
    found = frame[(frame["detector"] == detector) & (frame["control"] == control)]
    assert len(found) == 1
    return float(found["auroc"].iloc[0])


def test_each_case_behaves_as_stated() -> None:
    results = run()
    frame = controls(results)
    assert value(frame, "leak", "halves") > 0.7 or value(frame, "leak", "halves") < 0.3
    for detector in ("good", "shift", "bank"):
        row = frame[(frame["detector"] == detector) & (frame["control"] == "halves")].iloc[0]
        assert row["ci_low"] < 0.5 < row["ci_high"] or abs(row["auroc"] - 0.5) < 0.08
    assert value(frame, "bank", "training") > 0.99
    assert abs(value(frame, "good", "training") - 0.5) < 0.08
    assert value(frame, "good", "semantic") > 0.9
    assert value(frame, "good", "covariate") < 0.65
    assert value(frame, "shift", "covariate") > 0.9
    assert value(frame, "shift", "semantic") < 0.75
    pooled = results.value("pooled_auroc", dataset="far", detector="good")
    assert value(frame, "good", "semantic") == pooled


def test_findings_name_the_detectors() -> None:
    texts = [finding.text for finding in control_findings(run())]
    assert len(texts) == 3
    leak, bank, shift = texts
    assert leak.startswith("detector leak separates two random halves")
    assert "bank 1" in bank
    assert "good" not in bank
    assert "only the detection error rate (der" in bank
    texts = [finding.text for finding in control_findings(run(der=()))]
    assert "nothing uses such thresholds" in texts[1]
    assert "shift (" in shift
    assert not any(name in shift.split(": ")[1] for name in ("good", "bank", "leak"))


def test_an_untrained_network_that_does_as_well() -> None:
    results = run()
    texts = [f.text for f in control_findings(results, run(1, trained=False))]
    untrained = next(text for text in texts if "an untrained network separates" in text)
    assert "good" not in untrained
    frame = controls(results, run(1, trained=False))
    assert abs(value(frame, "good", "untrained") - 0.5) < 0.08


def test_a_run_has_them_on_request_and_keeps_them(tmp_path) -> None:
    assert not [f for f in run().findings if f.kind == "controls"]
    results = run(controls=True)
    assert len([f for f in results.findings if f.kind == "controls"]) == 3
    results.save(tmp_path)
    again = Results.load(tmp_path)
    assert again.settings.controls
    assert again.findings == results.findings
    assert not [f for f in again.recompute(controls=False).findings if f.kind == "controls"]


def test_without_training_or_shifted_images() -> None:
    full = run()
    rows = full.scores[full.scores["dataset"].isin(["val", "far"])]
    results = Results.from_scores(rows, [SETS[1], SETS[2]], ["good"], bootstrap=0, controls=True)
    assert set(controls(results)["control"]) == {"halves", "semantic"}
    assert not [f for f in results.findings if f.kind == "controls"]


@pytest.mark.parametrize("seed", range(5))
def test_good_detectors_have_no_finding(seed: int) -> None:
    full = run(seed)
    results = Results.from_scores(full.scores, SETS, ["good"], bootstrap=0, controls=True)
    assert not [f for f in results.findings if f.kind == "controls"]
