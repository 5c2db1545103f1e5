"""P-values of images: how they are counted, what they guarantee, and that all forms of a gate agree on them."""

import hashlib
import json
import math
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oodlit import Gate, Results
from oodlit.datamodules import OODDataModule
from oodlit.detectors.formulas import p_values as formulas
from oodlit.errors import DataError, InvalidArgumentError
from oodlit.gate import Calibration
from oodlit.gate.calibration import Decision, calibrate
from oodlit.gate.threshold import Threshold, cuts_of
from tests.gate.p_value_script import EXPORTED, SETTINGS
from tests.gate.support import TinyNetwork
from tests.gate.test_threshold import results_of

ROOT = Path(__file__).parents[2]
scores = st.lists(st.integers(0, 30).map(float), min_size=9, max_size=40)
infinite = st.lists(st.sampled_from([-math.inf, 0.0, 1.0, math.inf]), min_size=9, max_size=20)


def p_value(score: float, known: list[float]) -> Fraction:
    """The definition, by a plain loop."""
    count = 1
    for other in known:
        if other <= score:
            count += 1
    return Fraction(count, len(known) + 1)


@given(scores | infinite, scores, st.sampled_from(["0.1", "0.25", "0.9"]))
def test_images_of_the_run_are_refused_exactly_if_their_p_value_is_at_most_alpha(
    inside: list[float], near: list[float], alpha: str
) -> None:
    calibration, threshold = calibrate(results_of(inside, near), "mine", alpha=alpha)
    assert threshold is not None
    every = inside + near
    accepted, _, found = Decision(threshold, calibration, 0)(torch.tensor(every).double(), None)
    expected = [p_value(score, inside) for score in every]
    assert found.tolist() == [float(p) for p in expected]
    assert accepted.tolist() == [p > Fraction(alpha) for p in expected]
    place = math.floor(Fraction(alpha) * (len(inside) + 1))
    assert threshold.value == sorted(inside)[place - 1]
    assert (threshold.kind, threshold.num_images, threshold.num_id) == ("alpha", len(inside), len(inside))
    assert threshold.num_id_refused == sum(p_value(score, inside) <= Fraction(alpha) for score in inside)


@pytest.mark.parametrize("is_traced", [False, True])
@given(
    st.lists(st.tuples(st.sampled_from([-math.inf, -1.0, 0.0, 0.5, math.inf]), st.integers(0, 3)), min_size=1),
    st.lists(st.tuples(st.sampled_from([-math.inf, -1.0, -0.5, 0.5, math.inf]), st.integers(0, 3)), min_size=1),
)
def test_p_values_by_loops_with_ties_and_infinite_scores(
    is_traced: bool, known: list[tuple[float, int]], new: list[tuple[float, int]]
) -> None:
    ascending, classes = zip(*sorted(known), strict=True)
    cuts, of_class = torch.tensor(ascending).double(), torch.tensor(classes)
    values, predicted = (torch.tensor(part) for part in zip(*new, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formulas, "is_traced", lambda: is_traced)  # as in an exported program
        of_all = Calibration(cuts, cuts)(values).tolist()
        per_class = Calibration(cuts, cuts, of_class)(values, predicted).tolist()
        nothing = Calibration(cuts, cuts)(torch.tensor([math.nan]))
    assert of_all == [float(p_value(score, list(ascending))) for score, _ in new]
    assert per_class == [float(p_value(score, [k for k, c in known if c == index])) for score, index in new]
    assert nothing.isnan().all()


@pytest.mark.parametrize("number", [19, 60, 400])
@pytest.mark.parametrize("kind", ["normal", "rounded", "coin", "equal"])
def test_images_like_the_calibration_images_are_refused_with_a_probability_of_at_most_alpha(
    kind: str, number: int
) -> None:
    """Each repetition draws calibration images and one new image."""
    rng, alpha, repetitions = np.random.default_rng(number), 0.05, 4000
    drawn = rng.normal(size=(repetitions, number + 1))
    if kind != "normal":
        drawn = {"rounded": drawn.round(1), "coin": (drawn > 1.6) * 1.0, "equal": drawn * 0}[kind]
    refused = 0
    for *known, new in drawn[: repetitions // 2].tolist():
        values = np.sort(known)
        cuts = cuts_of(values, values, np.append(values, new))
        refused += Calibration(torch.tensor(values), torch.tensor(cuts))(torch.tensor([new])).item() <= alpha
    exact = ((drawn[:, :-1] <= drawn[:, -1:]).sum(1) + 1) / (number + 1) <= alpha
    for rate, trials in ((refused / (repetitions // 2), repetitions // 2), (exact.mean(), repetitions)):
        assert rate <= alpha + 3 * math.sqrt(alpha * (1 - alpha) / trials)
    if kind == "normal":  # the level is used up
        level = math.floor(alpha * (number + 1)) / (number + 1)
        assert exact.mean() == pytest.approx(level, abs=3 * math.sqrt(level / repetitions))


def test_each_predicted_class_keeps_the_level() -> None:
    """Class 1 has lower scores: one threshold for all refuses too many of its images."""
    rng, alpha, repetitions = np.random.default_rng(0), 0.1, 400
    refused, refused_by_one = np.zeros(2), np.zeros(2)
    for _ in range(repetitions):
        values = rng.normal(size=80)
        classes = rng.integers(0, 2, size=80)
        values -= 2 * classes
        order = values.argsort()
        known, of_class = torch.tensor(values[order]), torch.tensor(classes[order])
        one = float(known[7])  # floor(0.1 * 81) = 8
        threshold = Threshold(one, one, 0, 0, "alpha per class", alpha, "val", 80, 80, 7, 0.95)
        decision = Decision(threshold, Calibration(known, known, of_class), 2)
        for index in range(2):
            new = torch.tensor(rng.normal(size=20) - 2 * index)
            accepted, limits, _ = decision(new, torch.full((20,), index))
            refused[index] += 1 - accepted.double().mean().item()
            refused_by_one[index] += (new < one).double().mean().item()
            own = values[classes == index]
            assert set(limits.tolist()) == {np.sort(own)[math.floor(Fraction("0.1") * (len(own) + 1)) - 1]}
    assert (refused / repetitions <= alpha + 3 * 0.06 / math.sqrt(repetitions)).all()
    assert refused_by_one[1] / repetitions > 1.5 * alpha


def with_classes(values: np.ndarray, classes: np.ndarray) -> Results:
    """Results with a predicted class for each ID image."""
    results = results_of(values.tolist(), [0.0])
    predictions = dict(zip((f"val/{i}" for i in range(len(values))), classes.tolist(), strict=True))
    frame = results.scores.assign(prediction=results.scores["key"].map(predictions).fillna(0).astype(int))
    return Results.from_scores(frame, results.datasets, ["mine"], bootstrap=0)


def test_classes_with_few_images_have_no_p_value_and_the_threshold_of_all_classes() -> None:
    values = np.arange(30.0)
    made, threshold = calibrate(
        with_classes(values, np.array([0] * 22 + [1] * 8)), "mine", alpha=0.1, per_class=True, num_classes=3
    )
    assert threshold is not None
    decision = Decision(threshold, made, 3)
    accepted, limits, found = decision(torch.tensor([3.0, 3.0, 1.0, 1.0]), torch.tensor([0, 1, 0, 2]))
    assert decision.no_p_value == {
        1: "8 calibration images, but alpha requires 9",
        2: "0 calibration images, but alpha requires 9",
    }
    assert found[[0, 2]].tolist() == [5 / 23, 3 / 23]
    assert found[[1, 3]].isnan().all()
    assert limits.tolist() == [1.0, 2.0, 1.0, 2.0]  # the third smallest of 30, and the second smallest of 22
    assert accepted.tolist() == [True, True, True, False]


@given(scores, st.sampled_from([0.25, 0.5, 0.75]))
def test_a_fraction_of_the_images_calibrates_and_the_others_are_counted(inside: list[float], share: float) -> None:
    results = results_of(inside, [0.0])
    rows = results.scores[results.scores["dataset"] == "val"]
    first = {}
    for key in rows["key"]:
        bits = f"{hashlib.blake2b(key.encode(), digest_size=1).digest()[0]:08b}"
        first[key] = sum(int(bit) / 2 ** (place + 1) for place, bit in enumerate(reversed(bits))) < share
    known = rows["mine"][[first[key] for key in rows["key"]]].tolist()
    others = rows["mine"][[not first[key] for key in rows["key"]]].tolist()
    if not known or not others:
        with pytest.raises(InvalidArgumentError, match="some images must be selected and some must remain"):
            calibrate(results, "mine", alpha=0.5, calibration=share)
        return
    made, threshold = calibrate(results, "mine", alpha=0.5, calibration=share)
    assert threshold is not None
    assert made.scores.tolist() == sorted(known)
    assert (threshold.num_images, threshold.num_id) == (len(known), len(others))
    assert threshold.num_id_refused == sum(p_value(score, known) <= Fraction(1, 2) for score in others)
    assert str(threshold).endswith(f"of the {len(others)} other ID images")


def test_the_origin_of_the_threshold_is_stated() -> None:
    results = results_of([float(i) for i in range(39)], [0.0])
    _, threshold = calibrate(results, "mine", alpha=0.05)
    assert str(threshold).endswith(
        ", from 39 calibration images of val (also used by the metrics of the run): refuses on average at most 5 % of"
        " similar images, and 1 of these 39 images"
    )


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        (
            {"alpha": 0.05},
            r"alpha=0\.05 requires at least 19 calibration images, got 18 images of val; .* >= 0\.052632, or",
        ),
        ({"alpha": 0.1, "calibration": 0.1}, r"calibration=0\.1 selects|requires at least 9 calibration images"),
        ({"alpha": 1}, r"expected alpha in \(0, 1\), such as 0\.05, got 1"),
        ({"alpha": 0}, "got 0"),
        ({"alpha": "much"}, "got 'much'"),
        ({"alpha": True}, "got True"),
        ({"calibration": 2}, r"expected calibration to be in \(0, 1\]"),
        ({"per_class": True}, "per_class=True also requires alpha"),
        ({"per_class": True, "alpha": 0.1}, "requires a network with classes"),
    ],
)
def test_settings_that_have_no_threshold_are_errors(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidArgumentError, match=match):
        calibrate(results_of([float(i) for i in range(18)], [0.0]), "mine", **settings)


@pytest.mark.parametrize("number", [1, 18, 100, 123, 400])
@pytest.mark.parametrize("calibration", [None, 0.5])
def test_the_smallest_alpha_that_an_error_names_is_accepted(number: int, calibration: float | None) -> None:
    results = results_of([float(i) for i in range(number if calibration is None else 2 * number + 10)], [0.0])
    with pytest.raises(InvalidArgumentError, match="choose alpha >= ") as caught:
        calibrate(results, "mine", alpha=0.0001, calibration=calibration)
    assert ("raise calibration" in str(caught.value)) == (calibration is not None)
    alpha = float(re.split("[ ,]", str(caught.value).partition(">= ")[2])[0])
    _, threshold = calibrate(results, "mine", alpha=alpha, calibration=calibration)
    assert threshold is not None
    assert threshold.share == alpha


def test_settings_of_a_gate(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"alpha cannot be combined with tpr, .* got alpha=0\.1, tpr=0\.9"):
        Gate.load(folder, detector="msp", model=TinyNetwork(), alpha=0.1, tpr=0.9)
    with pytest.warns(UserWarning, match=r"no p-values for 3 of 7 classes: zero \(0 calibration images, but"):
        gate = Gate.load(folder, detector="mahalanobis", model=TinyNetwork(), alpha=0.1, per_class=True)
    assert sorted(gate.no_p_value) == [0, 1, 2]
    gate.save(tmp_path / "gate")
    with pytest.raises(InvalidArgumentError, match="a saved gate has a fixed threshold"):
        Gate.load(tmp_path / "gate", model=TinyNetwork(), alpha=0.1)
    file = tmp_path / "gate" / "calibration.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"x")
    with pytest.raises(DataError, match=r"calibration\.safetensors: changed since the gate was saved; restore"):
        Gate.load(tmp_path / "gate", model=TinyNetwork())
    file.unlink()
    with pytest.raises(DataError, match=r"calibration\.safetensors: missing; restore"):
        Gate.load(tmp_path / "gate", model=TinyNetwork())


def test_gates_of_earlier_versions_have_no_p_values(gate: Gate, tmp_path: Path) -> None:
    gate.save(tmp_path / "gate")
    (tmp_path / "gate" / "calibration.safetensors").unlink()
    record = json.loads((tmp_path / "gate" / "gate.json").read_text())
    del record["calibration"], record["threshold"]["calibration"]
    for name in ("calibration", "threshold.calibration"):
        del record["entry_checksums"][name]
    (tmp_path / "gate" / "gate.json").write_text(json.dumps(record))
    older = Gate.load(tmp_path / "gate", model=TinyNetwork())
    image = torch.linspace(-1, 1, 192).view(3, 8, 8)
    assert older(image)[0].p_value is None
    assert older(image)[0]._replace(p_value=gate(image)[0].p_value) == gate(image)[0]


@pytest.fixture(scope="module")
def everywhere(
    folder: Path, data: OODDataModule, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[str], dict[str, Any], dict[str, dict[str, list[Any]]]]:
    """Images of the run, verdicts of gates in another process, and outputs of their programs in one without oodlit."""
    made = tmp_path_factory.mktemp("p-values")
    results = Results.load(folder)
    rows = results.scores[results.scores["dataset"] != "digits_train"].sort_values("mahalanobis")
    keys = [*rows["key"][:80], *rows["key"][80::40]]
    images = data.read_images(keys)
    assert data.transform is not None
    torch.save(torch.stack([data.transform(images[key]) for key in keys]), made / "images.pt")
    told = []
    for script in (["p_value_script", str(folder), str(made)], ["program_script", str(made)]):
        script[:1] = ["-m", f"tests.gate.{script[0]}"]
        done = subprocess.run([sys.executable, *script], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        told.append(json.loads(done.stdout.splitlines()[-1]))
    return keys, told[0], told[1]


@pytest.mark.integration
def test_p_values_in_another_process_are_those_of_the_run(folder: Path, everywhere: Any) -> None:
    keys, told, _ = everywhere
    results = Results.load(folder)
    rows = results.scores.set_index("key")
    inside = rows[rows["dataset"] == "digits_val"]
    for name in SETTINGS:
        assert len(told[name]) == len(keys) > 80
        for key, (accepted, found, predicted, limit) in zip(keys, told[name], strict=True):
            known = inside
            if name == "half":
                known = inside[[hashlib.blake2b(k.encode(), digest_size=1).digest()[0] % 2 == 0 for k in inside.index]]
            if name == "classes":
                known = inside[inside["prediction"] == predicted]
            expected = p_value(rows.loc[key, "mahalanobis"], known["mahalanobis"].tolist())
            assert found is None if len(known) < 9 else found == float(expected), (name, key)
            if found is not None and name != "plain":
                assert accepted == (expected > Fraction(1, 10)) == (rows.loc[key, "mahalanobis"] >= limit), (name, key)


@pytest.mark.integration
def test_exported_programs_return_the_p_values_of_their_gates(everywhere: Any) -> None:
    _, told, programs = everywhere
    for name in EXPORTED:
        for program in (programs[name], programs[f"{name}.onnx"]):
            assert program["accepted"] == [verdict[0] for verdict in told[name]], name
            assert [None if math.isnan(p) else p for p in program["p_value"]] == [v[1] for v in told[name]], name
