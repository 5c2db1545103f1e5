"""Runs that break half-way, things that are used again, and memory that does not suffice."""

import numpy as np
import pytest
import pytorch_lightning as pl
import torch

from oodlit import OODModule, Results, Role
from oodlit.callbacks import OODDetection
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.sources import MemorySource
from oodlit.datamodules.stream import Stream
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
from oodlit.detectors.contract.reference import Reference
from oodlit.detectors.statistics import FeatureBank, Statistics
from oodlit.errors import DataError, FingerprintError, InvalidArgumentError, RequirementError, UnknownNameError
from oodlit.runs import run_checks as checks
from oodlit.testing.backbones import TinyConvNet
from oodlit.testing.problems import separated_problem
from tests.callbacks.support import Recorder, make_module, make_streams, make_trainer, predict, run, stream

pytestmark = pytest.mark.filterwarnings("ignore:.*undefined .NaN.")


class Boom(TrainFreeDetector):
    """Fails at the first score; asks for images, so that the module is set up for it."""

    needs = frozenset({"logits", "images"})
    reference = Reference("t", "a", "v", 2024, "https://example.org")

    def _score(self, outputs):
        raise RuntimeError("boom")


# --- precision --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
def test_a_fit_of_one_precision_is_found_again(precision, tmp_path):
    """The weights are converted after `setup`: a fit belongs to them as they were given."""
    options = {"trainer": {"precision": precision}}
    first = run([Mahalanobis(), ViM()], output_dir=tmp_path, num_thumbnails=0, **options)
    streams = make_streams(with_train=False)
    again = run(None, fitted=tmp_path / "fitted", streams=streams, **options)
    assert again.results.run.fitted_from == str(tmp_path / "fitted")
    for name in ("mahalanobis", "vim"):
        expected = first.results.scores.query("dataset == 'far'")[name].to_numpy()
        np.testing.assert_allclose(again.results.scores.query("dataset == 'far'")[name], expected, rtol=1e-6)


# --- state ------------------------------------------------------------------------------------------------------------


KEPT = {"unfinished", ".progress"}
"""What is left in the folder of a broken run: what it had finished, and how far it had come."""


def test_a_run_that_breaks_leaves_nothing_behind(tmp_path):
    module, data = make_module(), OODDataModule(make_streams(with_train=True))
    before = {part: dict(vars(part)) for part in (module, data)}
    detection = OODDetection([MSP(), Boom()], output_dir=tmp_path / "out", strict=True)
    with pytest.raises(RuntimeError, match="boom"):
        make_trainer(detection).predict(module, data, return_predictions=False)
    assert detection.plan is None
    for part, fields in before.items():
        own = {name: value for name, value in vars(part).items() if name in fields and "trainer" not in name}
        assert own.keys() >= {"transform"}
        assert all(own[name] is fields[name] for name in ("transform", "streams", "network") if name in fields)
    assert data.active_streams[0].role is Role.TRAIN
    assert {path.name for path in (tmp_path / "out").iterdir()} == KEPT
    assert run([MSP()], module=module).results is not None


def test_interrupt_leaves_nothing_behind(tmp_path):
    class Interrupt(pl.Callback):
        def on_predict_batch_end(self, *_):
            raise KeyboardInterrupt

    module, data = make_module(), OODDataModule(make_streams(with_train=False))
    detection = OODDetection([MSP(), ODIN()], output_dir=tmp_path / "out")
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        make_trainer(detection, Interrupt()).predict(module, data, return_predictions=False)
    assert detection.plan is None
    assert module.predict_step({"image": torch.rand(1, 3, 8, 8)}, 0).images is None
    assert {path.name for path in (tmp_path / "out").iterdir()} == KEPT


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
    detection = OODDetection([Mahalanobis(), Fragile()], strict=True)
    make_trainer(detection).predict(make_module(), OODDataModule(make_streams()), return_predictions=False)
    monkeypatch.setattr(Fragile, "breaks", True)
    with pytest.raises(RuntimeError, match="the fit breaks"):
        make_trainer(detection).predict(make_module(), OODDataModule(make_streams()), return_predictions=False)
    data = OODDataModule(make_streams(with_train=False))
    with pytest.raises(RequirementError, match="mahalanobis: need training images"):
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
    """The detector itself knows its backbone."""
    detector, other = KNN(k=3), make_module()
    with torch.no_grad():
        other.network.conv.weight.mul_(2)
    run([detector], output_dir=tmp_path, num_thumbnails=0)
    without = {"streams": make_streams(with_train=False)}
    run([detector], **without)
    for known in (detector, load(tmp_path / "fitted")[0]["knn"]):
        with pytest.raises(FingerprintError, match="detector 'knn' belongs to another backbone or transform: "):
            run([known], module=other, **without)
    fit([detector], [separated_problem().train])  # by hand: nobody knows to what it belongs
    assert run([detector], module=other, **without).results is not None


def test_output_of_somebody_s_own_predict_step_is_named():
    class Own(OODModule):
        def predict_step(self, batch, batch_idx, dataloader_idx=0):
            return super().predict_step(batch, batch_idx, dataloader_idx).logits

    with pytest.raises(InvalidArgumentError, match="predict_step of Own returned a Tensor"):
        run([MSP()], module=Own(TinyConvNet(6)))


def test_processes_that_take_the_results_with_them_need_a_folder():
    """With ddp_spawn, `results` of the starting process would be None."""
    trainer = make_trainer(OODDetection([MSP()]))
    trainer.strategy._launcher = type("_MultiProcessingLauncher", (), {"launch": lambda _, f, *a, **k: f(*a)})()
    with pytest.raises(InvalidArgumentError, match=r"ddp_spawn.* pass output_dir to OODDetection"):
        trainer.predict(make_module(), OODDataModule(make_streams()), return_predictions=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_thumbnails": -1}, "num_thumbnails to be at least 0, got -1"),
        ({"fitted": "folder"}, r"pass either detectors=\[...\] or fitted=FOLDER"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        OODDetection(**({"detectors": [MSP()]} | options))


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (MSP(), ["msp"]),
        ("MSP", ["msp"]),
        ("knn, Mahalanobis++", ["knn", "mahalanobis_plus_plus"]),
        (["KNN", MSP()], ["knn", "msp"]),
        ({"mine": "MSP", "other": KNN(k=3)}, ["mine", "other"]),
    ],
)
def test_detectors_are_given_as_objects_or_by_name(given, names):
    assert [*OODDetection(given).detectors] == names


def test_an_unknown_name_of_a_detector_has_suggestions():
    with pytest.raises(UnknownNameError, match="unknown detector 'Mahalanobiss'; did you mean 'mahalanobis'"):
        OODDetection(["Mahalanobiss"])


def test_list_of_detectors_is_copied():
    detectors = [MSP(), KNN(k=3)]
    detection = OODDetection(detectors)
    detectors.clear()
    assert list(detection.detectors) == ["msp", "knn"]


def test_two_callbacks_are_refused():
    callbacks = OODDetection([MSP()]), OODDetection([Energy()])
    with pytest.raises(InvalidArgumentError, match="2 OODDetection callbacks"):
        make_trainer(*callbacks).predict(make_module(), OODDataModule(make_streams()), return_predictions=False)


def test_strategies_that_shard_the_weights_are_refused():
    from pytorch_lightning.strategies import FSDPStrategy

    with pytest.raises(InvalidArgumentError, match="strategy FSDPStrategy shards the weights"):
        checks.check_strategy("OODDetection", FSDPStrategy())
    checks.check_strategy("OODDetection", make_trainer().strategy, loader="Results")


@pytest.mark.filterwarnings("ignore:the classifier has an accuracy")  # the labels are arbitrary
def test_a_trainer_predicts_other_data_next():
    detection = OODDetection([MSP(), Mahalanobis()])
    trainer, module = make_trainer(detection), make_module()
    counts = []
    for name in ("first", "second"):
        streams = [stream("train", Role.TRAIN, 40), stream(name, Role.ID, 6), stream(f"{name}-far", Role.OOD)]
        trainer.predict(module, OODDataModule(streams, batch_size=4), return_predictions=False)
        counts.append(detection.results.run.counts)
    assert list(counts[1]) == ["train", "second", "second-far"]


def test_weights_that_come_after_the_check_are_refused(tmp_path):
    """Lightning loads `ckpt_path` after `setup`."""
    module = make_module()
    make_trainer(OODDetection([MSP()])).predict(module, OODDataModule(make_streams()), return_predictions=False)
    torch.save({"state_dict": module.state_dict(), "pytorch-lightning_version": pl.__version__}, tmp_path / "a.ckpt")
    trainer = make_trainer(OODDetection([Mahalanobis()]))
    with pytest.raises(InvalidArgumentError, match="the detectors were checked before Lightning loaded ckpt_path"):
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
    assert Results.load(tmp_path).run.counts == {"val": 30, "far": 30}
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
    needed = checks.check_memory(statistics, facts)
    monkeypatch.setattr(checks, "_memory_bytes", lambda _: 3 * needed)
    assert checks.check_memory(statistics, facts, processes=3) == needed
    with pytest.raises(RequirementError, match=r"in each of 4 processes on this machine .* or use fewer processes"):
        checks.check_memory(statistics, facts, processes=4)


def test_kept_predictions_hold_no_intermediate_results():
    detection = OODDetection([MSP(), Energy(), KNN(k=3)])
    kept = make_trainer(detection).predict(make_module(), OODDataModule(make_streams()))
    fields = {
        "logits",
        "features",
        "labels",
        "groups",
        "keys",
        "images",
        "hidden",
        "model",
        "backbone",
        "memoized",
        "_versions",
        "_fields",  # of the tensors above, by name
    }
    for outputs in (outputs for batches in kept for outputs in batches):
        assert set(vars(outputs)) <= fields
        assert not outputs.memoized
