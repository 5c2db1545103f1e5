"""What goes wrong around a run: skipped images, wrong labels, errors half-way, things used again."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import pytorch_lightning as pl
import torch
from PIL import Image

from oodlit import OODModule, Results, Role
from oodlit.callbacks import OODDetection, preparation
from oodlit.callbacks import detection as detection_file
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.sources import MemorySource
from oodlit.datamodules.stream import Sample, Stream
from oodlit.detectors import (
    KNN,
    MSP,
    ODIN,
    BackboneFacts,
    Detector,
    Energy,
    Mahalanobis,
    TrainFreeDetector,
    ViM,
    fit,
    load,
)
from oodlit.detectors.reference import Reference
from oodlit.detectors.statistics import FeatureBank, Statistics
from oodlit.errors import DataError, FingerprintError, InvalidArgumentError, RequirementError
from oodlit.testing.backbones import TinyConvNet
from oodlit.testing.problems import separated_problem
from tests.callbacks.support import Recorder, make_module, make_streams, make_trainer, run

pytestmark = pytest.mark.filterwarnings("ignore:.*values are undefined")


def stream(name, role, count=4, *, broken=(), label=None, group=-1, names=(), image=None):
    generator = torch.Generator().manual_seed(len(name) + count)
    samples = [
        Sample(
            str(i),
            torch.rand(3, 8, 8, generator=generator) if image is None else image,
            label=label if label is not None else (i % 6 if role in (Role.TRAIN, Role.ID, Role.SHIFT) else -1),
            group=group,
            error="broken" if i in broken else None,
        )
        for i in range(count)
    ]
    return Stream(name, role, MemorySource(samples), names)


def predict(detectors, streams, *, module=None, on_error="raise", transform=None, trainer=None, **options):
    detection = OODDetection(detectors, **options)
    data = OODDataModule(streams, batch_size=2, on_error=on_error, transform=transform)
    make_trainer(detection, **(trainer or {})).predict(module or make_module(), data, return_predictions=False)
    return detection


class Boom(TrainFreeDetector):
    """Fails at the first score; asks for images, so that the module is set up for it."""

    needs = frozenset({"logits", "images"})
    reference = Reference("t", "a", "v", 2024, "https://example.org")

    def _score(self, outputs):
        raise RuntimeError("boom")


# --- data -------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*images were skipped")
def test_skipped_batches_and_streams_are_counted_and_named():
    far = stream("far", Role.OOD, broken=range(4))
    detection = predict([MSP()], [stream("val", Role.ID, 8, broken=(2, 3)), far], on_error="skip")
    record = detection.results.run
    assert record["counts"] == {"val": 6, "far": 0}
    assert [entry["key"] for entry in record["skipped"]] == ["far/0", "far/1", "far/2", "far/3", "val/2", "val/3"]
    assert np.isnan(detection.results.value("auroc", dataset="far", detector="msp"))
    assert "there is no OOD score" in {entry["reason"] for entry in record["undefined"]}


@pytest.mark.filterwarnings("ignore:.*images were skipped")
def test_many_broken_images_at_the_start_do_not_stop_a_run_that_skips():
    streams = [stream("val", Role.ID, 40, broken=range(33)), stream("far", Role.OOD)]
    assert predict([MSP()], streams, on_error="skip").results.run["counts"]["val"] == 7


def test_id_stream_without_a_usable_image():
    streams = [stream("val", Role.ID, broken=range(4)), stream("far", Role.OOD)]
    with pytest.raises(DataError, match=r"'val': none of its 4 images can be used, first val/0: broken"):
        predict([MSP()], streams, on_error="skip")


def test_train_stream_without_a_usable_image_says_why_nothing_is_fitted():
    streams = [stream("train", Role.TRAIN, 6, broken=range(6)), stream("val", Role.ID)]
    with pytest.raises(
        DataError, match=r"none of the 6 training images of 'train' .* \(6 were skipped .* train/0: bro"
    ):
        predict([Mahalanobis()], streams, on_error="skip")


@pytest.mark.parametrize("role", [Role.TRAIN, Role.ID, Role.SHIFT])
def test_labels_beyond_the_classes_of_the_network_are_refused(role):
    others = [s for s in make_streams() if s.role is not role]
    with pytest.raises(DataError, match=r"'odd': label 9 of 'odd/0', but the network has 6 classes, 0..5"):
        predict([Mahalanobis()], [*others, stream("odd", role, label=9)])


@pytest.mark.parametrize("group", [-1, 2])
def test_groups_without_a_name_are_refused_at_the_first_batch(group):
    streams = [stream("val", Role.ID), stream("far", Role.OOD, names=("a", "b"), group=group)]
    with pytest.raises(DataError, match=rf"'far': key '0': group {group}, but the stream has 2 class names"):
        predict([MSP()], streams)


@pytest.mark.parametrize("image", [torch.rand(1, 8, 8), torch.zeros(3, 8, 8, dtype=torch.uint8)])
def test_a_stream_of_other_images_is_named(image):
    with pytest.raises(DataError, match=r"'far': the images from 'far/0' on .* those of the ID stream \(3, 8, 8\)"):
        predict([MSP()], [stream("val", Role.ID), stream("far", Role.OOD, image=image)])


def test_streams_of_one_image_and_without_labels():
    streams = [stream("val", Role.ID, 1, label=-1), stream("far", Role.OOD, 1)]
    results = predict([MSP()], streams).results
    assert results.value("fpr95", dataset="far", detector="msp") in (0.0, 1.0)
    assert "accuracy of 'val': not computed, its images have no labels" in results.run["notes"]


def test_iterable_of_ten_with_two_workers():
    """FAULTS: streamed data repeated by workers."""
    streams = [stream("val", Role.ID, 10), stream("far", Role.OOD, 10)]
    keys = run([MSP()], streams=streams, batch_size=3, num_workers=2).results.scores["key"]
    assert sorted(keys) == sorted(f"{name}/{i}" for name in ("val", "far") for i in range(10))


def test_two_training_streams_are_one_training_set():
    streams = [stream("train", Role.TRAIN, 30), stream("more", Role.TRAIN, 20), stream("val", Role.ID)]
    results = predict([Mahalanobis()], streams).results
    assert results.run["counts"]["train+more"] == 50
    assert not [note for note in results.run["notes"] if "are stated" in note]


def test_pil_images_without_a_transform():
    streams = [stream("val", Role.ID, image=Image.new("RGB", (8, 8)))]
    with pytest.raises(InvalidArgumentError, match="no transform is set"):
        predict([MSP()], streams)


# --- transforms -------------------------------------------------------------------------------------------------------


class Scaled:
    """A transform that can be told from others."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, image):
        return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255 * self.scale

    def __repr__(self) -> str:
        return f"Scaled({self.scale})"


def picture_streams():
    pictures = [Image.new("RGB", (8, 8), (40 * i, 10, 255 - 40 * i)) for i in range(6)]
    return [
        Stream(n, r, MemorySource([Sample(str(i), p, label=i) for i, p in enumerate(pictures)]))
        for n, r in (("train", Role.TRAIN), ("val", Role.ID), ("far", Role.OOD))
    ]


def test_second_backbone_on_the_same_data_gets_its_own_transform():
    data, scores = OODDataModule(picture_streams()), []
    for scale in (1.0, 3.0):
        detection = OODDetection([MSP()])
        module = OODModule(TinyConvNet(6), transform=Scaled(scale))
        make_trainer(detection).predict(module, data, return_predictions=False)
        assert data.transform is None
        assert detection.results.run["backbone"]["transform"] == f"Scaled({scale})"
        scores.append(detection.results.scores["msp"])
    assert not np.allclose(*scores)


def test_a_fit_belongs_to_the_transform_of_the_data(tmp_path):
    """FAULTS: stored without what it belongs to: the data module's transform counts where it has one."""
    predict([Mahalanobis()], picture_streams(), transform=Scaled(1.0), output_dir=tmp_path, num_thumbnails=0)
    saved = {"fitted": tmp_path / "fitted"}
    predict(None, picture_streams()[1:], transform=Scaled(1.0), **saved)
    with pytest.raises(ValueError, match="fingerprint"):
        predict(None, picture_streams()[1:], transform=Scaled(2.0), **saved)


def test_step_of_odin_follows_the_transform_of_the_data():
    """FAULTS: preprocessing constants in input perturbation."""
    from torchvision import transforms

    class Look(pl.Callback):
        def on_predict_start(self, trainer, pl_module):
            seen.append(pl_module.std.tolist())

    seen = []
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.25] * 3)])
    detection = OODDetection([ODIN()])
    data = OODDataModule(picture_streams()[1:], transform=transform)
    module = OODModule(TinyConvNet(6))
    make_trainer(detection, Look()).predict(module, data, return_predictions=False)
    assert seen == [[0.25] * 3]
    assert module.transform is None


# --- precision --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
def test_a_fit_of_one_precision_is_found_again(precision, tmp_path):
    """The weights are converted after `setup`: a fit belongs to them as they were given."""
    options = {"trainer": {"precision": precision}}
    first = run([Mahalanobis(), ViM()], output_dir=tmp_path, num_thumbnails=0, **options)
    streams = make_streams(with_train=False)
    again = run(None, fitted=tmp_path / "fitted", streams=streams, **options)
    assert again.results.run["fitted_from"] == str(tmp_path / "fitted")
    for name in ("mahalanobis", "vim"):
        expected = first.results.scores.query("dataset == 'far'")[name].to_numpy()
        np.testing.assert_allclose(again.results.scores.query("dataset == 'far'")[name], expected, rtol=1e-6)


# --- state ------------------------------------------------------------------------------------------------------------


def test_a_run_that_breaks_leaves_nothing_behind(tmp_path):
    module, data = make_module(), OODDataModule(make_streams(with_train=True))
    detection = OODDetection([MSP(), Boom()], output_dir=tmp_path / "out")
    with pytest.raises(RuntimeError, match="boom"):
        make_trainer(detection).predict(module, data, return_predictions=False)
    assert module.give == frozenset()
    assert data.transform is None
    assert data.use_train
    assert not list((tmp_path / "out").iterdir())
    assert run([MSP()], module=module).results is not None


def test_interrupt_leaves_nothing_behind(tmp_path):
    class Interrupt(pl.Callback):
        def on_predict_batch_end(self, *_):
            raise KeyboardInterrupt

    module, data = make_module(), OODDataModule(make_streams(with_train=False))
    detection = OODDetection([MSP(), ODIN()], output_dir=tmp_path / "out")
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        make_trainer(detection, Interrupt()).predict(module, data, return_predictions=False)
    assert module.give == frozenset()
    assert not list((tmp_path / "out").iterdir())


class Fragile(Detector):
    """Its fit breaks when it is told to."""

    needs = frozenset({"features"})
    statistics = (FeatureBank,)
    reference = Reference("t", "a", "v", 2024, "https://example.org")
    breaks = False

    def _fit(self, statistics, head):
        if Fragile.breaks:
            raise RuntimeError("the fit breaks")

    def _score(self, outputs):
        return outputs.require("features").sum(dim=1)


def test_a_fit_that_breaks_half_way_is_not_taken_for_the_earlier_one(monkeypatch):
    """After a good run and one that broke within the fit, no detector counts as fitted."""
    detection = OODDetection([Mahalanobis(), Fragile()])
    make_trainer(detection).predict(make_module(), OODDataModule(make_streams()), return_predictions=False)
    monkeypatch.setattr(Fragile, "breaks", True)
    with pytest.raises(RuntimeError, match="the fit breaks"):
        make_trainer(detection).predict(make_module(), OODDataModule(make_streams()), return_predictions=False)
    data = OODDataModule(make_streams(with_train=False))
    with pytest.raises(RequirementError, match="mahalanobis: needs a train stream"):
        make_trainer(detection).predict(make_module(), data, return_predictions=False)


def test_the_head_of_another_backbone_is_taken_without_training_images():
    """Detectors that need the head alone are fitted anew for every backbone, whatever the data has."""
    from oodlit.detectors import GradNorm

    detection = OODDetection([GradNorm()])
    scores = []
    for factor in (1.0, 2.0):
        module = make_module()
        with torch.no_grad():
            module.network.get_submodule("head").weight.mul_(factor)
        data = OODDataModule(make_streams(with_train=False))
        make_trainer(detection).predict(module, data, return_predictions=False)
        scores.append(detection.results.scores["grad_norm"])
    assert not np.allclose(*scores)


def test_a_fitted_detector_in_a_new_callback_still_belongs_to_its_backbone(tmp_path):
    """FAULTS: stored without what it belongs to: the detector itself knows its backbone."""
    detector, other = KNN(k=3), make_module()
    with torch.no_grad():
        other.network.conv.weight.mul_(2)
    run([detector], output_dir=tmp_path, num_thumbnails=0)
    without = {"streams": make_streams(with_train=False)}
    run([detector], **without)
    for known in (detector, load(tmp_path / "fitted")[0]["knn"]):
        with pytest.raises(FingerprintError, match="detector 'knn' was fitted on a backbone with fingerprint"):
            run([known], module=other, **without)
    fit([detector], [separated_problem().train])  # by hand: nobody knows to what it belongs
    assert run([detector], module=other, **without).results is not None


def test_output_of_somebody_s_own_predict_step_is_named():
    class Own(OODModule):
        def predict_step(self, batch, batch_idx, dataloader_idx=0):
            return super().predict_step(batch, batch_idx, dataloader_idx).logits

    with pytest.raises(InvalidArgumentError, match="predict_step of Own gave a Tensor"):
        run([MSP()], module=Own(TinyConvNet(6)))


def test_processes_that_take_the_results_with_them_need_a_folder():
    """FAULTS: API not available: with ddp_spawn, `results` of the starting process would be None."""
    trainer = make_trainer(OODDetection([MSP()]))
    trainer.strategy._launcher = type("_MultiProcessingLauncher", (), {"launch": lambda _, f, *a, **k: f(*a)})()
    with pytest.raises(InvalidArgumentError, match=r"memory is gone when they end .* give OODDetection an output_dir"):
        trainer.predict(make_module(), OODDataModule(make_streams()), return_predictions=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_thumbnails": -1}, "num_thumbnails=-1"),
        ({"fitted": "folder"}, r"give either detectors=\[...\] or fitted=FOLDER"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        OODDetection(**({"detectors": [MSP()]} | options))


@pytest.mark.parametrize("single", [MSP(), "msp"])
def test_one_detector_is_no_list(single):
    with pytest.raises(InvalidArgumentError, match="a list of detectors is needed"):
        detection_file._check_several(single)  # the suite checks the types of public functions before they run


def test_list_of_detectors_is_copied():
    detectors = [MSP(), KNN(k=3)]
    detection = OODDetection(detectors)
    detectors.clear()
    assert list(detection.detectors) == ["msp", "knn"]


def test_two_callbacks_are_refused():
    callbacks = OODDetection([MSP()]), OODDetection([Energy()])
    with pytest.raises(InvalidArgumentError, match="2 OODDetection callbacks, one is possible"):
        make_trainer(*callbacks).predict(make_module(), OODDataModule(make_streams()), return_predictions=False)


def test_strategies_that_shard_the_weights_are_refused():
    from pytorch_lightning.strategies import FSDPStrategy

    with pytest.raises(InvalidArgumentError, match="strategy FSDPStrategy shards the weights"):
        detection_file._check_strategy(FSDPStrategy())
    detection_file._check_strategy(make_trainer().strategy)


def test_a_trainer_predicts_other_data_next():
    detection = OODDetection([MSP(), Mahalanobis()])
    trainer, module = make_trainer(detection), make_module()
    counts = []
    for name in ("first", "second"):
        streams = [stream("train", Role.TRAIN, 40), stream(name, Role.ID, 6), stream(f"{name}-far", Role.OOD)]
        trainer.predict(module, OODDataModule(streams, batch_size=4), return_predictions=False)
        counts.append(detection.results.run["counts"])
    assert list(counts[1]) == ["train", "second", "second-far"]


def test_weights_that_come_after_the_check_are_refused(tmp_path):
    """FAULTS: stored without what it belongs to: Lightning loads `ckpt_path` after `setup`."""
    module = make_module()
    make_trainer(OODDetection([MSP()])).predict(module, OODDataModule(make_streams()), return_predictions=False)
    torch.save({"state_dict": module.state_dict(), "pytorch-lightning_version": pl.__version__}, tmp_path / "a.ckpt")
    trainer = make_trainer(OODDetection([Mahalanobis()]))
    with pytest.raises(InvalidArgumentError, match="loads ckpt_path after the detectors were checked"):
        trainer.predict(
            module, OODDataModule(make_streams()), return_predictions=False, ckpt_path=str(tmp_path / "a.ckpt")
        )


def test_numbers_are_kept_and_logged_when_the_pictures_fail(tmp_path):
    class Lost(MemorySource):
        """Its images are gone when the run is over."""

        def find(self, keys):
            raise DataError("the images are gone")

    far = Stream("far", Role.OOD, Lost(make_streams()[1].source.samples))
    recorder = Recorder()
    with pytest.raises(DataError, match="images are gone"):
        predict([MSP()], [make_streams()[1], far], output_dir=tmp_path, trainer={"logger": recorder})
    assert Results.load(tmp_path).run["counts"] == {"val": 30, "far": 30}
    assert len(recorder.logged) == 1


def test_train_mode_makes_no_difference():
    module = make_module()
    module.network.train()
    ours = predict([MSP()], make_streams(), module=module).results.scores["msp"]
    assert (ours == predict([MSP()], make_streams()).results.scores["msp"]).all()


# --- memory -----------------------------------------------------------------------------------------------------------


def test_memory_of_a_machine_is_shared_by_its_processes(monkeypatch):
    facts = BackboneFacts(width=100, num_classes=10, num_train=1000)
    statistics = Statistics([FeatureBank()])
    needed = preparation.check_memory(statistics, facts)
    monkeypatch.setattr(preparation, "_available_bytes", lambda: 3 * needed)
    assert preparation.check_memory(statistics, facts, processes=3) == needed
    with pytest.raises(RequirementError, match=r"in each of 4 processes on this machine .* or use fewer processes"):
        preparation.check_memory(statistics, facts, processes=4)


def test_predictions_that_fill_the_memory_are_announced(monkeypatch):
    """FAULTS: unbounded memory: Lightning keeps all predictions by default."""
    monkeypatch.setattr(detection_file, "MANY_BYTES", 1000)
    with pytest.warns(UserWarning, match=r"keeps the outputs of all images, .* pass return_predictions=False"):
        make_trainer(OODDetection([MSP()])).predict(make_module(), OODDataModule(make_streams()))
    run([MSP()])  # return_predictions=False: no warning


def test_kept_predictions_hold_no_intermediate_results():
    detection = OODDetection([MSP(), Energy(), KNN(k=3)])
    kept = make_trainer(detection).predict(make_module(), OODDataModule(make_streams()))
    fields = {"logits", "features", "labels", "groups", "keys", "images", "hidden", "model", "_memo"}
    for outputs in (outputs for batches in kept for outputs in batches):
        assert set(vars(outputs)) <= fields
        assert not outputs._memo


# --- loggers, names, folders ------------------------------------------------------------------------------------------


def test_names_with_blanks_colons_and_slashes_reach_every_logger(tmp_path):
    """FAULTS: several back-ends: one naming scheme, NaN included, in one call."""
    from pytorch_lightning.loggers import CSVLogger

    recorder = Recorder()
    streams = [stream("val: 1", Role.ID, 6), stream("far off", Role.OOD, names=("a/b", "c: d"), group=0)]
    trainer = {"logger": [CSVLogger(tmp_path, name="csv"), recorder]}
    results = predict({"my knn: k=3/x": MSP(), "b|c*?": Energy()}, streams, trainer=trainer).results
    ((logged, step),) = recorder.logged
    assert step == 0
    assert recorder.saved >= 1
    assert len(logged) == len(results.table)
    assert logged.keys() == results.metrics_by_name().keys()
    assert "far_off/my_knn_k_3_x/fpr95/a_b" in logged
    assert np.isnan(logged["far_off/my_knn_k_3_x/fpr95/c_d"])
    written = pd.read_csv(next(Path(tmp_path).rglob("metrics.csv")))
    assert len(written) == 1
    assert set(logged) <= set(written.columns)


def test_relative_folder_stays_where_it_was_named(tmp_path, monkeypatch):
    class Leave(pl.Callback):
        def on_predict_start(self, *_):
            (tmp_path / "elsewhere").mkdir()
            os.chdir(tmp_path / "elsewhere")

    monkeypatch.chdir(tmp_path)
    detection = OODDetection([MSP()], output_dir="Ergebnisse ü: 1/x", num_thumbnails=0)
    data = OODDataModule(make_streams(with_train=False))
    make_trainer(detection, Leave()).predict(make_module(), data, return_predictions=False)
    assert Results.load(tmp_path / "Ergebnisse ü: 1" / "x").detectors == ("msp",)


def test_nothing_of_an_earlier_run_is_left_in_the_folder(tmp_path):
    run([MSP(), Mahalanobis()], output_dir=tmp_path / "first", num_thumbnails=3)
    run([MSP(), Mahalanobis()], output_dir=tmp_path / "out", num_thumbnails=3)
    assert (tmp_path / "out" / "thumbnails").is_dir()
    (tmp_path / "out" / "mine.txt").write_text("kept")
    saved = {"fitted": tmp_path / "first" / "fitted", "streams": make_streams(with_train=False)}
    run(None, output_dir=tmp_path / "out", num_thumbnails=0, **saved)
    left = {str(f.relative_to(tmp_path / "out")) for f in (tmp_path / "out").rglob("*") if f.is_file()}
    assert left == {"table.csv", "scores.parquet", "run.json", "report.html", "mine.txt"}


def test_a_saved_fit_in_the_folder_of_the_run_is_kept(tmp_path):
    run([Mahalanobis()], output_dir=tmp_path, num_thumbnails=0)
    saved = {"fitted": tmp_path / "fitted", "streams": make_streams(with_train=False)}
    run(None, output_dir=tmp_path, num_thumbnails=0, **saved)
    assert (tmp_path / "fitted" / "detectors.json").is_file()


def test_the_same_run_twice_gives_the_same_files(tmp_path):
    contents = []
    for _ in range(2):
        run([MSP(), Mahalanobis(), KNN(k=3)], output_dir=tmp_path)
        files = [f for f in tmp_path.rglob("*") if f.is_file() and f.name not in ("run.json", "report.html")]
        contents.append({str(f): f.read_bytes() for f in files})
    assert contents[0] == contents[1]


def test_papers_are_part_of_the_record():
    record = run([Mine(), MSP()], streams=make_streams(with_train=False)).results.run
    assert record["references"]["mine"]["title"] == "mine"
    assert record["references"]["msp"]["year"] == 2017


class Mine(TrainFreeDetector):
    """A detector of somebody's own."""

    needs = frozenset({"logits"})
    reference = Reference("mine", "me", "nowhere", 2026, "https://example.org/mine")

    def _score(self, outputs):
        return outputs.max_logits
