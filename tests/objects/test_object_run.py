"""One `trainer.predict` over boxes: every detector that applies, on both architectures, exactly."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from pytorch_lightning.loggers import CSVLogger

from oodlit.base import atomic
from oodlit.detectors import KNN, MSP, ODIN, Energy, LaRD, Mahalanobis, fit, load
from oodlit.errors import DataError, FingerprintError, InvalidArgumentError, RequirementError, RunIsCompleteError
from oodlit.module import OODModule
from oodlit.objects import Detections, ObjectDetection, ObjectModule, ObjectResults
from oodlit.objects.fit_rows import ImageObjects, fit_rows
from oodlit.outputs import Outputs
from oodlit.results.record_parts import AccelerationRecord
from oodlit.runs.boxes.rows import same_boxes
from tests.objects.networks import fcos, hugging_face
from tests.objects.runs import SETTINGS, benchmark, make_module, make_trainer, many_detectors, predict, write


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("sets"))


@pytest.fixture
def data(folder):
    return benchmark(folder)


def test_nearly_every_detector_scores_boxes(data) -> None:
    results = predict(many_detectors(), data)
    assert len(results.detectors) >= 35
    of_images, of_text = (
        {"ada_scale", "iodin", "mc_dropout", "odin", "pro", "rank_feat"},
        {"csp", "gl_mcm", "neg_label"},
    )
    of_labels = {"temperature_scaled_msp"}  # boxes are labeled with the predictions of the network
    assert set(results.run.not_applicable) == of_images | of_text | of_labels
    assert np.isfinite(results.boxes[list(results.detectors)].to_numpy()).all()
    assert results.splits == ("near_coco", "far_coco", "near_oi", "far_oi")
    counts = results.images.groupby("dataset").size()
    assert counts.tolist() == [5] * 5  # images without objects, and without boxes, are images
    assert results.run.fit.boxes > 50
    assert results.run.fit.on == "predicted"


def test_nearly_every_detector_scores_the_boxes_of_queries(folder) -> None:
    pytest.importorskip("transformers")
    module = ObjectModule(hugging_face("rt_detr"), min_confidence=0.0)
    results = predict(many_detectors(), benchmark(folder), module, settings=SETTINGS.changed(t_star=0.0))
    assert len(results.detectors) >= 30, results.run.not_applicable
    assert np.isfinite(results.boxes[list(results.detectors)].to_numpy()).all()


def test_a_one_stage_detector_runs_what_needs_logits_alone(data) -> None:
    module = ObjectModule(fcos(), min_confidence=0.0)
    results = predict([MSP(), Energy(), Mahalanobis(), LaRD()], data, module, settings=SETTINGS.changed(t_star=0.0))
    assert results.detectors == ("msp", "energy", "lard")
    assert "needs features" in results.run.not_applicable["mahalanobis"]


def test_scores_are_those_of_a_plain_loop(data) -> None:
    module, results = make_module(), predict([MSP(), Mahalanobis(), KNN(k=3)], data)
    streams = {stream.name: stream for stream in data.streams}

    def boxes_of(name: str) -> list[Detections]:
        loader = data._loader(streams[name], 0, 1)
        return [module.predict_step(batch, 0) for batch in loader]

    train = [found.above(SETTINGS.t_star) for found in boxes_of("voc_train")]
    rows = [
        Outputs(found.outputs.logits, found.outputs.features, found.classes, keys=found.outputs.keys)
        for found in train
        if len(found)
    ]
    for detector in (MSP(), Mahalanobis(), KNN(k=3)):
        fit([detector], rows)
        for name in results.splits:
            expected = {}
            for found in boxes_of(name):
                if len(found):
                    expected |= dict(zip(found.box_keys, detector.score(found.outputs).tolist(), strict=True))
            own = results.boxes[results.boxes["dataset"] == name].set_index("key")[detector.key()]
            assert own.to_dict() == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_the_batch_size_changes_nothing(folder, batch_size) -> None:
    some = {"msp": MSP(), "energy": Energy(), "mahalanobis": Mahalanobis(), "knn": KNN(k=3), "lard": LaRD()}
    expected = predict(some, benchmark(folder, batch_size=4))
    other = predict(some, benchmark(folder, batch_size=batch_size))
    plain = [name for name in expected.boxes if name not in some]
    pd.testing.assert_frame_equal(other.boxes[plain], expected.boxes[plain])
    np.testing.assert_allclose(other.boxes[list(some)], expected.boxes[list(some)], rtol=1e-4, atol=1e-5)
    pd.testing.assert_frame_equal(other.images, expected.images)


def test_lard_looks_into_the_predicted_boxes(data) -> None:
    results = predict({"lard": LaRD("backbone.1")}, data, make_module(cells=2))
    assert results.boxes["lard"].nunique() > 10
    left_out = predict({"msp": MSP(), "lard": LaRD("backbone.7")}, data)
    assert "did you mean" in left_out.run.not_applicable["lard"]
    with pytest.raises(RequirementError, match="odin: needs"):
        predict([MSP(), ODIN()], data, strict=True)


def test_a_network_that_fails_names_the_data_set(monkeypatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("at least 10 pixels")

    module = make_module()
    monkeypatch.setattr(module.reader, "read", fail)
    with pytest.raises(DataError, match=r"data set 'far', .*'far/a': .*1 image of shape \(3, 9, 8\).* 10 pixels"):
        module.predict_step({"image": [torch.zeros(3, 9, 8)], "key": ["far/a"]}, 0)


def test_a_fit_is_saved_and_used_again_on_its_network_alone(data, tmp_path) -> None:
    first = predict([MSP(), Mahalanobis()], data, output_dir=tmp_path / "out")
    loaded = ObjectResults.load(tmp_path / "out")
    pd.testing.assert_frame_equal(loaded.boxes, first.boxes)
    again = predict(None, data, fitted=tmp_path / "out" / "fitted")
    pd.testing.assert_frame_equal(again.boxes, first.boxes)
    detector = load(tmp_path / "out" / "fitted")[0]["mahalanobis"]
    batch = next(iter(data._loader(data.stream("near_coco"), 0, 1)))
    alone = make_module().predict_step(batch, 0)
    scores = dict(zip(alone.box_keys, detector.score(alone.outputs).tolist(), strict=True))
    assert first.boxes.set_index("key")["mahalanobis"][list(scores)].to_dict() == pytest.approx(scores, rel=1e-5)
    other = make_module()
    torch.nn.init.normal_(other.network.roi_heads.box_predictor.cls_score.weight)
    with pytest.raises(FingerprintError, match="the state of the weights"):
        predict(None, data, other, fitted=tmp_path / "out" / "fitted")
    with pytest.raises(FingerprintError, match="the state of the weights"):
        detector.score(other.predict_step(batch, 0).outputs)


def test_matched_boxes_hit_an_object_of_their_class(data) -> None:
    annotations = data.annotations["voc_train"]
    place = int(annotations.image[0])
    box, label = annotations.boxes[0].float(), annotations.labels[0]
    other = (label + 1) % 3
    found = Detections(
        torch.stack([box, box, box + 30, box]),
        torch.tensor([0.9, 0.9, 0.9, 0.1]),
        torch.zeros(4).long(),
        [annotations.keys[place]],
        predictions=torch.stack([label, other, label, label]),
        outputs=Outputs(torch.eye(4, 3)),
    )
    rows = fit_rows(found, cut=0.5, objects=ImageObjects(annotations))
    assert rows.keys == [f"{annotations.keys[place]}#0"]
    assert rows.labels.tolist() == [int(label)]
    every = fit_rows(found, cut=0.5)
    assert every.labels.tolist() == [int(label), int(other), int(label)]
    assert fit_rows(found, cut=0.95) is None
    assert predict([Mahalanobis()], data, make_module(min_confidence=0.0), settings=SETTINGS.changed(t_star=0.01)).run
    crowd = int(annotations.is_crowd.nonzero()[0])
    alone = ImageObjects(annotations).of([annotations.keys[int(annotations.image[crowd])]])
    assert annotations.boxes[crowd].tolist() not in alone.boxes.tolist()


def test_without_any_box_nothing_is_fitted_but_train_free_detectors_score(data) -> None:
    high = SETTINGS.changed(t_star=0.999)
    with pytest.raises(DataError, match=r"no box of the training images has a confidence of at least 0\.999"):
        predict([Mahalanobis()], data, settings=high)
    results = predict([MSP()], data, make_module(min_confidence=0.99), settings=high)
    assert len(results.boxes) == 0
    assert len(results.images) == 25
    assert results.value("no_boxes", dataset="near_coco") == 1


def test_pictures_that_were_resized_are_refused(folder, tmp_path) -> None:
    file = folder / "fmiyc/COCO/annotations/near_coco_wrt_voc.json"
    text = file.read_text()
    content = json.loads(text)
    content["images"][2]["width"] += 1
    file.write_text(json.dumps(content))
    try:
        with pytest.raises(DataError, match="in which they were annotated"):
            predict([MSP()], benchmark(folder, sets=["near_coco"]))
    finally:
        file.write_text(text)


def test_parts_that_do_not_fit_are_told(data, folder) -> None:
    detection = ObjectDetection([MSP()], settings=SETTINGS)
    with pytest.raises(InvalidArgumentError, match="wrap the network: ObjectModule"):
        make_trainer(detection).predict(OODModule(torch.nn.Linear(2, 2)), data)
    with pytest.raises(InvalidArgumentError, match="expected an ObjectBenchmark"):
        make_trainer(detection).predict(make_module(), torch.utils.data.DataLoader([1]))
    with pytest.raises(InvalidArgumentError, match="returns 2 class logits, but the data has 3"):
        make_trainer(detection).predict(make_module(2), data)
    with pytest.raises(InvalidArgumentError, match="the object detector has the classes b, a, c"):
        make_trainer(detection).predict(make_module(class_names=["b", "a", "c"]), data)
    with pytest.raises(InvalidArgumentError, match=r"expected t_star to be at least 0\.3, .* got 0\.2"):
        make_trainer(detection).predict(make_module(min_confidence=0.3), data)
    with pytest.raises(InvalidArgumentError, match="fitted=FOLDER"):
        ObjectDetection()
    with pytest.raises(InvalidArgumentError, match=r"min_confidence to be in \[0, 1\), got 1"):
        make_module(min_confidence=1)


def test_classes_in_the_order_of_the_network(folder) -> None:
    names = ["bird", "aeroplane", "bicycle"]
    data = benchmark(folder, class_names=names)
    results = predict([MSP()], data, make_module(class_names=names))
    assert results.class_names == tuple(names)
    assert data.annotations["voc_test"].class_names == tuple(names)


def test_failing_detectors_are_left_out(data, monkeypatch) -> None:
    monkeypatch.setattr(Energy, "_score", lambda self, outputs: 1 / 0)
    results = predict([MSP(), Energy()], data)
    assert results.detectors == ("msp",)
    assert "ZeroDivisionError" in results.run.not_applicable["energy"]


def test_t_star_by_the_best_f1_of_the_id_set(data) -> None:
    given = predict([MSP()], data)
    best = predict([MSP()], data, t_star_rule="f1")
    assert given.settings.t_star == SETTINGS.t_star
    assert given.run.t_star_rule == "given"
    assert best.run.t_star_rule == "best F1 on the ID set"
    assert best.settings.t_star >= best.run.min_confidence  # from there on boxes are known
    assert best.run.fit.confidence == SETTINGS.t_star
    again = given.recompute(t_star=best.settings.t_star)
    pd.testing.assert_frame_equal(again.table, best.table)


def test_every_value_reaches_the_loggers(data, tmp_path) -> None:
    detection = ObjectDetection([MSP()], settings=SETTINGS)
    logger = CSVLogger(tmp_path)
    make_trainer(detection, logger=logger).predict(make_module(), data, return_predictions=False)
    logged = pd.read_csv(next(tmp_path.rglob("metrics.csv")))
    value = detection.results.value("r_u", dataset="near_coco", detector="msp")
    assert logged["near_coco/msp/r_u"].iloc[0] == pytest.approx(value)
    assert "far_oi/model/no_boxes" in logged


def test_a_detector_that_gives_nan_is_named_with_its_boxes(data, monkeypatch) -> None:
    monkeypatch.setattr(Energy, "_score", lambda self, outputs: torch.full((len(outputs),), torch.nan))
    results = predict([MSP(), Energy()], data)
    reason = results.run.not_applicable["energy"]
    assert "boxes of a batch of 'voc_test' (first: voc_test/" in reason
    assert results.detectors == ("msp",)


def test_a_page_that_cannot_be_drawn_loses_no_number(data, tmp_path, monkeypatch) -> None:
    def broken(*_args: object) -> None:
        raise OSError("no room for pictures")

    monkeypatch.setattr("oodlit.callbacks.object_detection.save_pictures", broken)
    with pytest.raises(OSError, match="no room for pictures"):
        predict([MSP()], data, output_dir=tmp_path / "out")
    assert len(ObjectResults.load(tmp_path / "out").boxes) > 0
    assert not (tmp_path / "out" / "report.html").exists()


def test_a_run_that_breaks_off_keeps_its_fit(data, tmp_path, monkeypatch) -> None:
    expected = predict([MSP(), Mahalanobis()], data)
    with monkeypatch.context() as patch:
        patch.setattr(MSP, "_score", lambda self, outputs: 1 / 0)
        with pytest.raises(ZeroDivisionError) as told:
            predict([MSP(), Mahalanobis()], data, output_dir=tmp_path / "out", strict=True)
    kept = tmp_path / "out" / "unfinished" / "fitted"
    assert f"reuse the fit with ObjectDetection(fitted={str(kept)!r}" in told.value.__notes__[0]
    again = predict(None, data, fitted=kept)
    pd.testing.assert_frame_equal(again.boxes, expected.boxes)
    predict(None, data, fitted=kept, output_dir=tmp_path / "out")  # the fit that was kept becomes this run's own
    assert not kept.parent.exists()
    assert set(load(tmp_path / "out" / "fitted")[0]) == {"msp", "mahalanobis"}
    pd.testing.assert_frame_equal(ObjectResults.load(tmp_path / "out").boxes, expected.boxes)
    predict([MSP()], data, output_dir=tmp_path / "out")
    assert set(load(tmp_path / "out" / "fitted")[0]) == {"msp"}


def test_a_folder_in_use_is_refused(data, tmp_path, monkeypatch) -> None:
    out, told, score = tmp_path / "out", [], MSP._score
    monkeypatch.setattr(atomic, "ORPHANS_S", 0.0)

    def score_meanwhile(self, outputs):
        if not told:  # another run begins while this one goes on
            with pytest.raises(InvalidArgumentError, match="another run is writing to this folder") as refused:
                predict([Energy()], data, output_dir=out)
            told.append(refused)
        return score(self, outputs)

    monkeypatch.setattr(MSP, "_score", score_meanwhile)
    assert predict([MSP()], data, output_dir=out).detectors == ("msp",)
    assert told
    assert ObjectResults.load(out).detectors == ("msp",)
    assert not (out / ".lock").exists()
    assert predict([Energy()], data, output_dir=out).detectors == ("energy",)


def test_a_run_says_what_it_kept(data) -> None:
    results = predict([MSP()], data)
    least = results.run.min_confidence
    with pytest.raises(InvalidArgumentError, match=f"at least {least:g}, the lowest confidence"):
        results.recompute(t_star=least / 2)


def test_mixed_precision_is_compared_with_the_plain_network(folder, monkeypatch) -> None:
    def record() -> AccelerationRecord:
        detection = ObjectDetection([MSP(), Mahalanobis()], settings=SETTINGS)
        trainer = make_trainer(detection, precision="bf16-mixed")
        trainer.predict(make_module(), benchmark(folder, sets=["near_coco"]), return_predictions=False)
        return detection.results.run.acceleration

    found = record()
    assert found.precision == "bf16-mixed"
    assert 0 < found.deviation_of_logits < 0.1
    assert set(found.deviation_of_scores) == {"msp", "mahalanobis"}
    monkeypatch.setattr("oodlit.runs.boxes.rows.OVERLAP", 1.1)
    with pytest.raises(
        RequirementError, match=r"only 0 of the \d+ boxes that the network predicts in full precision are among"
    ):
        record()


def test_boxes_are_paired_within_their_image_alone() -> None:
    boxes = torch.tensor([[0.0, 0, 4, 4], [10, 10, 20, 20], [0, 0, 4, 4]])

    def found(*rows: int, image: list[int]) -> Detections:
        logits = torch.tensor(rows).float()[:, None].repeat(1, 2)
        return Detections(
            boxes[list(rows)], torch.ones(3), torch.tensor(image), ["a/0", "a/1"], outputs=Outputs(logits)
        )

    pairs = same_boxes(found(2, 1, 0, image=[1, 0, 0]), found(0, 1, 2, image=[0, 0, 1]))
    assert pairs.rows.tolist() == [2, 1, 0]
    assert pairs.outputs.logits[pairs.rows].tolist() == pairs.exact.logits.tolist()


def test_a_complete_run_is_not_repeated_and_another_one_is(folder, tmp_path) -> None:
    options = {"output_dir": tmp_path / "out", "resume": True}
    predict([MSP()], benchmark(folder, sets=["near_coco"]), **options)
    with pytest.raises(RunIsCompleteError, match=r"load the results with ObjectResults\.load"):
        predict([MSP()], benchmark(folder, sets=["near_coco"]), **options)
    for change in ({"settings": SETTINGS.changed(t_star=0.3)}, {"t_star_rule": "f1"}, {"fit_on": "matched"}):
        predict([MSP()], benchmark(folder, sets=["near_coco"]), **options | change)
        with pytest.raises(RunIsCompleteError):
            predict([MSP()], benchmark(folder, sets=["near_coco"]), **options | change)
    data = benchmark(folder, sets=["near_coco"])
    data.annotations["near_coco"].boxes[0, 2] -= 1  # another table
    predict([MSP()], data, **options | change)


def test_what_detectors_cost_is_measured(folder) -> None:
    results = predict([MSP(), Mahalanobis()], benchmark(folder, sets=["near_coco"]))
    assert results.run.time.mean["backbone"] > 0
    assert results.run.time.backbone_ms > 0
    assert set(results.run.ms_per_box) == {"msp", "mahalanobis"}
