"""Results of boxes: the table is what the functions give, from any order, and can be made again from the files."""

import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from oodlit import Results
from oodlit.errors import DataError, InvalidArgumentError, NonFiniteScoreError, UnknownNameError
from oodlit.metrics import auroc, fpr_at_tpr
from oodlit.objects import Annotations, Detections, ObjectResults, ObjectSet, ObjectSettings
from oodlit.objects.metrics.registry import box_metrics
from oodlit.objects.results.evaluation import OBJECT_COLUMNS
from oodlit.objects.results.summary import summary_tables
from oodlit.results import DatasetInfo
from oodlit.roles import Role

from .support import Box, Plain, annotations_of, reference_open_set, scenes

CLASSES = ("cat", "dog")


def object_set(scene: Plain, name: str, *, role: Role = Role.OOD, reverse: bool = False) -> ObjectSet:
    """A scene as a data set; `reverse` turns the order of its images and boxes round, not what they are called."""
    keys = [f"{name}/{number}" for number in range(scene.n_images)]
    numbers = list(range(len(scene.boxes)))
    of_image: dict[int, int] = {}
    index = [of_image.setdefault(b.image, -1) or 0 for b in scene.boxes]
    for place, box in enumerate(scene.boxes):
        of_image[box.image] += 1
        index[place] = of_image[box.image]
    if reverse:
        numbers.reverse()
        keys.reverse()
    boxes = [scene.boxes[number] for number in numbers]
    detections = Detections(
        torch.tensor([b.corners for b in boxes], dtype=torch.float64).reshape(-1, 4),
        torch.tensor([b.confidence for b in boxes], dtype=torch.float64),
        torch.tensor([keys.index(f"{name}/{b.image}") for b in boxes], dtype=torch.int64),
        keys,
        predictions=torch.tensor([b.label for b in boxes], dtype=torch.int64),
        index=torch.tensor([index[number] for number in numbers], dtype=torch.int64),
    )
    scores = np.array([b.score for b in boxes], dtype=float)
    return ObjectSet(DatasetInfo(name, role), detections, annotated(scene, name), {"g": scores, "h": -scores})


def annotated(scene: Plain, name: str) -> Annotations:
    of_image: dict[str, list[tuple[int, ...]]] = {f"{name}/{number}": [] for number in range(scene.n_images)}
    labels: dict[str, list[int]] = {key: [] for key in of_image}
    for image, corners, label in scene.objects:
        of_image[f"{name}/{image}"].append(corners)
        labels[f"{name}/{image}"].append(label)
    return annotations_of(name, of_image, classes=CLASSES, labels=labels)


def made(
    inside: Plain, split: Plain, *, reverse: bool = False, classes: tuple[str, ...] = CLASSES, **changes: object
) -> ObjectResults:
    sets = [object_set(inside, "val", role=Role.ID, reverse=reverse), object_set(split, "near", reverse=reverse)]
    chosen = ObjectSettings().changed(**{"bootstrap": 0, **changes})
    return ObjectResults.from_sets(sets, class_names=classes, settings=chosen)


def example(**changes: object) -> ObjectResults:
    """A pair of scenes that hypothesis finds for no seed of its own: many boxes, an image without any."""
    random = np.random.default_rng(5)

    def scene(seed_images: int) -> Plain:
        def corner() -> tuple[int, int, int, int]:
            x, y = random.integers(0, 60, 2).tolist()
            return x, y, x + int(random.integers(10, 40)), y + int(random.integers(10, 40))

        objects = [(int(random.integers(seed_images)), corner(), int(random.integers(2))) for _ in range(12)]
        boxes = [
            Box(image, tuple(c + int(random.integers(-2, 3)) for c in corners), float(random.integers(1, 20) / 20),
                float(random.normal()), label)
            for image, corners, label in objects * 3
        ]  # fmt: skip
        return Plain(boxes, objects, seed_images + 1)

    return made(scene(5), scene(6), **changes)


@settings(max_examples=25)
@given(scenes(min_boxes=1), scenes(min_boxes=1, min_objects=1), st.sampled_from([0.0, 0.25, 0.5]))
def test_the_table_is_what_the_functions_give(inside: Plain, split: Plain, t_star: float) -> None:
    found = made(inside, split, t_star=t_star, classes=())  # without: the mean average precision takes its time
    kept = {
        name: Plain([b for b in scene.boxes if b.confidence >= t_star], scene.objects, scene.n_images)
        for name, scene in (("val", inside), ("near", split))
    }
    counts = found.row("auroc", dataset="near", detector="g")
    assert (counts["n_id"], counts["n_ood"]) == (len(kept["val"].boxes), len(kept["near"].boxes))
    assert (counts["n_objects"], counts["n_images"], counts["t_star"]) == (len(split.objects), split.n_images, t_star)
    scores = {name: [b.score for b in scene.boxes] for name, scene in kept.items()}
    if not scores["val"]:
        assert "no ID box" in found.reason("r_u", dataset="near", detector="g")
        return
    expected = {k: v for k, v in reference_open_set(kept["near"], found.threshold("g")).items() if v is not None}
    if scores["near"]:
        expected |= {"auroc": auroc(scores["val"], scores["near"]), "fpr95": fpr_at_tpr(scores["val"], scores["near"])}
    told = {name: found.value(name, dataset="near", detector="g") for name in expected}
    assert told == pytest.approx({name: float(value) for name, value in expected.items()}, abs=1e-12)
    empty = split.n_images - len({b.image for b in kept["near"].boxes})
    assert found.value("no_boxes", dataset="near") == pytest.approx(empty / split.n_images)


def test_published_rules_leave_out_images_without_objects_on_both_sides() -> None:
    place = (0, 0, 20, 20)
    inside = Plain([Box(0, place, 0.9, 1.0), Box(1, place, 0.95, 1.0)], [(0, place, 0)], 2)
    split = Plain([Box(0, place, 0.92, 1.0), Box(1, place, 0.93, 1.0), Box(1, place, 0.5, -1.0)], [(0, place, 0)], 2)
    exact = made(inside, split, tau=0.0)
    published = exact.recompute(rules="published", tau=0.0)
    for results, wi, auroc_rows in ((exact, 1 / 4, (2, 3)), (published, 1 / 2, (2, 3))):
        assert results.value("wi", dataset="near", detector="g") == wi  # one of four boxes, or of two, is on an unknown
        row = results.row("auroc", dataset="near", detector="g")
        assert (row["n_id"], row["n_ood"]) == auroc_rows  # all boxes, by both rules
    assert exact.value("nose_boxes", dataset="near", detector="g") == 1
    assert published.value("nose_boxes", dataset="near", detector="g") == 1


@settings(max_examples=6)
@given(scenes(), scenes(), st.sampled_from(["exact", "published"]))
def test_order_does_not_matter(inside: Plain, split: Plain, rules: str) -> None:
    one, two = (made(inside, split, reverse=reverse, rules=rules, bootstrap=20) for reverse in (False, True))
    for name in ("boxes", "images", "objects", "table"):
        pd.testing.assert_frame_equal(getattr(one, name), getattr(two, name))


def test_every_nan_has_its_reason_and_every_name_its_meaning() -> None:
    found = made(Plain(), Plain(n_images=2))
    rows = found.table[found.table["value"].isna()]
    assert len(rows) > 5
    told = {(e.detector, e.dataset, e.ood_class, e.metric) for e in found.run.undefined}
    assert told == set(rows[["detector", "dataset", "ood_class", "metric"]].itertuples(index=False, name=None))
    assert all(entry.reason for entry in found.run.undefined)
    assert set(example().table["metric"]) == set(box_metrics(ObjectSettings()))
    assert tuple(found.table.columns) == OBJECT_COLUMNS


def test_intervals_hold_their_values() -> None:
    found = example(bootstrap=300, t_star=0.2)
    rows = found.table[found.table["ci_low"].notna()]
    assert len(rows) >= 16
    inside = (rows["ci_low"] <= rows["value"] + 0.05) & (rows["value"] <= rows["ci_high"] + 0.05)
    assert inside.all(), rows[~inside]
    again = example(bootstrap=300, t_star=0.2)
    pd.testing.assert_frame_equal(found.table, again.table)


def test_files_give_the_same_again(tmp_path: Path) -> None:
    found = example(t_star=0.2, bootstrap=10)
    found.save(tmp_path / "out")
    loaded = ObjectResults.load(tmp_path / "out")
    for name in ("boxes", "images", "objects", "table"):
        pd.testing.assert_frame_equal(getattr(found, name), getattr(loaded, name), check_dtype=name != "table")
    assert loaded.settings == found.settings
    assert {d: loaded.threshold(d) for d in "gh"} == {d: found.threshold(d) for d in "gh"}
    changed = {"t_star": 0.5, "iou": 0.75, "tau": {"g": 0.1, "h": math.inf}, "rules": "published"}
    pd.testing.assert_frame_equal(loaded.recompute(**changed).table, found.recompute(**changed).table)
    again = loaded.recompute(**changed).recompute(**asdict(found.settings))
    pd.testing.assert_frame_equal(again.table, found.table, check_dtype=False)
    infinite = found.recompute(tau=math.inf)
    infinite.save(tmp_path / "out")
    assert ObjectResults.load(tmp_path / "out").threshold("g") == math.inf
    assert ObjectResults.load(tmp_path / "out").settings == infinite.settings


def test_a_replaced_result_keeps_what_lies_beside_it(tmp_path: Path) -> None:
    found = example()
    found.save(tmp_path)
    (tmp_path / "report.html").write_text("page")
    found.recompute(iou=0.3).save(tmp_path)
    assert (tmp_path / "report.html").read_text() == "page"
    assert ObjectResults.load(tmp_path).settings.iou == 0.3
    found.save(tmp_path, add=lambda folder: None)
    assert not (tmp_path / "report.html").exists()


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    found = example()
    found.save(tmp_path)
    content = (tmp_path / "objects.parquet").read_bytes()
    (tmp_path / "objects.parquet").write_bytes(content[:-1])
    with pytest.raises(DataError, match=r"objects\.parquet.* does not match .*checksum"):
        ObjectResults.load(tmp_path)
    (tmp_path / "objects.parquet").unlink()
    with pytest.raises(DataError, match=r"missing objects\.parquet"):
        ObjectResults.load(tmp_path)


def test_results_of_images_and_of_boxes_are_not_taken_for_each_other(tmp_path: Path) -> None:
    frame = pd.DataFrame({"key": ["v/0", "v/1", "n/0"], "dataset": ["v", "v", "n"], "group": [-1] * 3,
                          "label": [0, 1, -1], "prediction": [0, 0, 0], "msp": [0.9, 0.5, 0.1]})  # fmt: skip
    Results.from_scores(frame, [DatasetInfo("v", Role.ID), DatasetInfo("n", Role.OOD)], ["msp"]).save(tmp_path)
    with pytest.raises(DataError, match="got results of images"):
        ObjectResults.load(tmp_path)
    example().save(tmp_path / "boxes")
    with pytest.raises(DataError, match="got results of boxes"):
        Results.load(tmp_path / "boxes")


def test_quality_of_the_known_classes() -> None:
    pytest.importorskip("faster_coco_eval")
    found = example()
    quality = found.run.id_quality
    assert 0 < quality["map"] < quality["map50"] <= 1
    assert quality["map50"] == pytest.approx(np.mean([quality[f"map50/{name}"] for name in CLASSES]), abs=1e-6)
    assert found.value("map50", dataset="val", ood_class="dog") == quality["map50/dog"]
    # A cut never raises it, so it is of all boxes whatever t* is.
    assert found.recompute(t_star=0.6).value("map", dataset="val") == quality["map"]
    row = found.recompute(t_star=0.6).row("map", dataset="val")
    assert math.isnan(row["t_star"])


def test_without_the_extra_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oodlit.objects.results.results.has_id_quality", lambda: False)
    found = example()
    assert "map" not in set(found.table["metric"])
    assert found.run.notes[-1] == "mean average precision was not computed; it requires: pip install 'oodlit[objects]'"


def test_side_by_side_shows_cuts_and_counts() -> None:
    found = example(t_star=0.2)
    wide = found.side_by_side("near")
    assert wide.index.tolist() == ["g", "h"]
    assert {"auroc", "fpr95", "auroc_hit", "ap_u", "r_u", "p_u", "nose", "tau", "t_star", "n_id", "n_ood"} <= set(wide)
    assert wide.loc["g", "tau"] == found.threshold("g")
    with pytest.raises(UnknownNameError, match="unknown OOD split 'nera'; did you mean 'near'"):
        found.side_by_side("nera")
    with pytest.raises(UnknownNameError, match="unknown detector 'x' in these results"):
        found.threshold("x")
    with pytest.raises(UnknownNameError, match="unknown value 'near/g/ap_x'"):
        found.value("ap_x", dataset="near", detector="g")


def test_what_does_not_fit_is_named() -> None:
    scene = Plain([], [(0, (0, 0, 4, 4), 0)])
    inside, split = object_set(scene, "val", role=Role.ID), object_set(scene, "near")

    def refused(sets: list[ObjectSet], kind: type[Exception], message: str, classes: tuple[str, ...] = CLASSES) -> None:
        with pytest.raises(kind, match=message):
            ObjectResults.from_sets(sets, class_names=classes, settings=ObjectSettings(bootstrap=0))

    refused([inside, replace(split, annotations=None)], InvalidArgumentError, "'near': no annotations were given")
    refused([split], InvalidArgumentError, "exactly one data set with role 'id'")
    refused([inside, replace(split, scores={"g": np.zeros(0)})], InvalidArgumentError, "'near' has no scores of 'h'")
    refused([inside, replace(split, scores={n: np.zeros(2) for n in "gh"})], InvalidArgumentError, r"got \(2,\)")
    lost = object_set(Plain([], [], 2), "near")
    refused(
        [inside, replace(lost, annotations=split.annotations)],
        DataError,
        r"1 of 2 images ha.* no annotations \(first: near/1.* keys `near/IMAGE_ID`",
    )
    refused([inside, split], DataError, r"not in class_names \(cat\); class_names: a, .*, h and 2 m", (*"abcdefghij",))
    moved = replace(split, info=DatasetInfo("far", Role.OOD))
    refused([inside, moved], InvalidArgumentError, "expected every key to begin with .*, got 'near/0'")
    taken = [replace(entry, scores={"overlap": np.zeros(0)}) for entry in (inside, split)]
    refused(taken, InvalidArgumentError, r"columns of the table of boxes; rename overlap")
    sized = replace(split, detections=replace(split.detections, sizes=torch.tensor([[7, 7]])))
    refused([inside, sized], DataError, r"1 image does not have the annotated size .*: 7 x 7 in the predictions, \d+ x")


def test_nan_scores_are_an_error() -> None:
    scene = Plain([Box(0, (0, 0, 4, 4), 0.5, math.nan)], [(0, (0, 0, 4, 4), 0)])
    with pytest.raises(NonFiniteScoreError, match=r"'g' returned NaN for 1 of 1 boxes of 'near' \(first: near/0#0\)"):
        made(Plain(), scene)


def test_a_threshold_that_cannot_be_leaves_its_reason() -> None:
    inside, split = ([Box(0, (0, 0, 4, 4), 0.5, score)] for score in (-math.inf, 0.0))
    found = made(Plain(inside), Plain(split, [(0, (0, 0, 4, 4), 0)]), classes=(), tau_rule="normal")
    reason = found.reason("r_u", dataset="near", detector="g")
    assert reason == "tau: some ID scores are infinite, so their mean is undefined; use tau_rule='quantile'"
    assert found.value("auroc", dataset="near", detector="g") == 0
    assert found.recompute(tau_rule="quantile").value("r_u", dataset="near", detector="g") == 0


def test_the_title_of_a_split_describes_its_numbers() -> None:
    console = Console(width=250, record=True)
    inside, split = Plain([Box(0, (0, 0, 4, 4), 0.5, 0.0)]), Plain([], [(0, (0, 0, 4, 4), 0)])
    console.print(*summary_tables(made(inside, split)))
    title = " ".join(console.export_text().split())
    assert title.startswith(
        "near: 1 unknown object in 1 image. Images without a box of confidence t* = 0 or higher: 100.0"
    )
    assert "Number of such boxes: 0 in near, 1 in val." in title


def test_what_no_box_hits_needs_no_threshold() -> None:
    split = Plain([Box(0, (0, 0, 4, 4), 0.5, -1.0)], [(0, (0, 0, 4, 4), 0), (0, (6, 6, 8, 8), 0)])
    without, with_id = made(Plain(), split), made(Plain([Box(0, (0, 0, 4, 4), 0.5, 0.0)]), split)
    for found in (without, with_id):
        assert found.value("dismissed", dataset="near", detector="g") == 0.5
    assert without.reason("r_u", dataset="near", detector="g") == "tau: there is no ID box"
    assert list(without.side_by_side("near")) == list(with_id.side_by_side("near"))


def test_without_unknown_objects_there_is_no_wilderness_impact() -> None:
    inside = Plain([Box(0, (0, 0, 4, 4), 0.5, 0.0)], [(0, (0, 0, 4, 4), 0)])
    found = made(inside, Plain([Box(0, (0, 0, 4, 4), 0.5, 0.0)]))
    assert found.reason("wi", dataset="near", detector="g") == "no unknown object is annotated"


def test_no_cut_below_what_the_run_kept() -> None:
    found = replace(example(), run=example().run.with_entries({"min_confidence": 0.05}))
    assert found.recompute(t_star=0.05).settings.t_star == 0.05
    with pytest.raises(InvalidArgumentError, match=r"at least 0\.05, .* got t_star=0\.01"):
        found.recompute(t_star=0.01)


def test_crowds_are_unknown_objects_too() -> None:
    scene = Plain([Box(0, (0, 0, 4, 4), 0.5, -1.0)], [(0, (0, 0, 4, 4), 0), (0, (6, 6, 8, 8), 0)])
    entry = object_set(scene, "near")
    assert entry.annotations is not None
    crowds = replace(entry, annotations=replace(entry.annotations, is_crowd=torch.tensor([True, True])))
    sets = [object_set(Plain([Box(0, (0, 0, 4, 4), 0.5, 0.0)]), "val", role=Role.ID), crowds]
    found = ObjectResults.from_sets(sets, settings=ObjectSettings(bootstrap=0))
    assert found.value("r_u", dataset="near", detector="g") == 0.5
    assert found.objects["is_crowd"].all()


def test_boxes_are_matched_once() -> None:
    found = example()
    assert found.scored_boxes("near") is found.scored_boxes("near")
    with pytest.raises(UnknownNameError, match="unknown data set 'far'"):
        found.scored_boxes("far")


def test_what_users_should_hear() -> None:
    scene = Plain([], [(0, (0, 0, 4, 4), 0), (1, (0, 0, 4, 4), 1)], 3)
    split = object_set(scene, "near")
    seen = Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.int64), ["near/0"])
    sets = [
        ObjectSet(DatasetInfo("val", Role.ID), object_set(Plain(), "val").detections, None, {"g": np.zeros(0)}),
        ObjectSet(split.info, seen, split.annotations, {"g": np.zeros(0)}),
    ]
    found = ObjectResults.from_sets(sets, class_names=("Dog",), settings=ObjectSettings(bootstrap=0))
    assert found.run.notes == [
        "val has no annotations, so no box counts as hitting an object",
        "near: the run has 1 of 3 annotated images; the metrics ignore the remaining annotated images",
        "near: objects of classes with the name of an ID class count as unknown: dog",
    ]
    assert len(found.objects) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rules": "mine"}, "rules .* got 'mine'"),
        ({"points": "12"}, "points .* got '12'"),
        ({"tau_rule": "mean"}, "tau_rule .* got 'mean'"),
        ({"t_star": math.nan}, "t_star=nan"),
        ({"iou": 0.0}, r"iou to be in \(0, 1\], got 0\.0"),
        ({"tpr": 1.5}, "tpr .* got 1.5"),
        ({"bootstrap": -1}, "bootstrap .* at least 0, got -1"),
        ({"tau": math.nan}, "tau to be a number, got NaN"),
        ({"other": 1}, "unknown setting 'other'; settings: "),
    ],
)
def test_settings_are_checked(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        ObjectSettings().changed(**change)


def test_thresholds_by_detector_are_given_for_every_detector() -> None:
    with pytest.raises(UnknownNameError, match="unknown detector 'h' in tau="):
        ObjectSettings(tau={"g": 1.0}).given_tau("h")
