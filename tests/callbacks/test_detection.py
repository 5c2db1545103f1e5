"""OODDetection inside real `trainer.predict` runs on one process."""

import collections
import warnings

import numpy as np
import pandas as pd
import pytest
import pytorch_lightning as pl
import torch

from oodlit import OODModule, Results, Role
from oodlit.backbones.identity import SIZES
from oodlit.callbacks import OODDetection
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.sources import MemorySource
from oodlit.datamodules.stream import Sample, Stream
from oodlit.detectors import (
    IODIN,
    KNN,
    MSP,
    ODIN,
    PRO,
    AdaSCALE,
    Energy,
    Mahalanobis,
    MaxLogit,
    RelativeMahalanobis,
    ViM,
)
from oodlit.errors import DataError, FingerprintError
from oodlit.results import FindingWarning
from oodlit.runs.choice import PROBE_IMAGES
from tests.callbacks.support import CountingNet, make_module, make_streams, make_trainer, predict, run

BEFORE = 2 * PROBE_IMAGES + len(SIZES)  # the probe reads its images twice
"""Images that go through the network before the first batch: the probe, and the pictures of the fingerprint."""
SEVEN = ("msp", "max_logit", "energy", "mahalanobis", "relative_mahalanobis", "vim", "knn")


def seven() -> list:
    return [MSP(), MaxLogit(), Energy(), Mahalanobis(), RelativeMahalanobis(), ViM(), KNN(k=5)]


@pytest.fixture(scope="module")
def done() -> OODDetection:
    return run(seven())


def test_one_call_gives_every_value_with_its_counts(done):
    table = done.results.table
    assert set(SEVEN) <= set(table["detector"])
    assert {"val", "far", "tests", "shifted"} <= set(table["dataset"])
    auroc = table[(table["metric"] == "pooled_auroc") & (table["dataset"] == "far")]
    assert (auroc["value"] > 0.9).all()
    assert (auroc["n_id"] == 30).all()
    assert (auroc["n_ood"] == 30).all()
    assert len(auroc) == 7


def test_scores_have_one_row_per_image_by_key(done):
    scores = done.results.scores
    expected = {f"{s.name}/{i:04d}" for s in make_streams() if s.role is not Role.TRAIN for i in range(len(s))}
    kept = scores[scores["dataset"] != "train"]
    assert sorted(kept["key"]) == sorted(expected)
    assert kept[kept["dataset"] == "far"]["group"].tolist() == [i % 3 for i in range(30)]


def test_scores_equal_those_of_detectors_fitted_by_hand(done):
    from oodlit.detectors import fit
    from oodlit.testing.problems import separated_problem

    problem = separated_problem()
    detectors = dict(zip(SEVEN, seven(), strict=True))
    fit(list(detectors.values()), [problem.train], problem.head)
    scores = done.results.scores.set_index("key")
    for name, detector in detectors.items():
        by_hand = detector.score(problem.ood).double().numpy()
        in_run = scores.loc[[f"far/{i:04d}" for i in range(30)], name].to_numpy(dtype=np.float64)
        np.testing.assert_allclose(in_run, by_hand, rtol=2e-4, atol=1e-5, err_msg=name)


def test_every_image_is_forwarded_once_whatever_the_number_of_detectors():
    module = OODModule(CountingNet(6))
    run(seven(), module=module, batch_size=7)
    total = sum(len(s) for s in make_streams())
    assert len(module.network.seen) == total + BEFORE
    # "tests" and "shifted" repeat images of "far" and "val": two or three passes of those, one of all others.
    assert set(collections.Counter(module.network.seen[BEFORE:]).values()) <= {1, 2}


def test_extra_passes_are_made_by_those_who_ask_alone():
    module = OODModule(CountingNet(6), transform=torch.nn.Identity())
    run([MSP(), ODIN()], module=module, streams=make_streams(with_train=False))
    total = sum(len(s) for s in make_streams(with_train=False))
    assert len(module.network.seen) > total + BEFORE


def test_the_train_stream_is_left_out_when_nothing_needs_it():
    module = OODModule(CountingNet(6))
    detection = run([MSP(), Energy()], module=module)
    total = sum(len(s) for s in make_streams() if s.role is not Role.TRAIN)
    assert len(module.network.seen) == total + BEFORE
    assert "train" not in set(detection.results.scores["dataset"])


def test_train_thresholds_can_be_asked_for():
    detection = run([MSP()], train_thresholds=True)
    table = detection.results.table
    assert {"der95", "der99"} <= set(table["metric"])


@pytest.mark.parametrize(("batch_size", "num_workers"), [(1, 0), (7, 2), (500, 1)])
def test_batch_size_and_workers_change_nothing(done, batch_size, num_workers):
    other = run(seven(), batch_size=batch_size, num_workers=num_workers)
    expected, got = done.results.scores, other.results.scores
    assert expected["key"].tolist() == got["key"].tolist()
    for name in SEVEN:
        np.testing.assert_allclose(
            got[name].to_numpy(np.float64), expected[name].to_numpy(np.float64), rtol=1e-4, atol=1e-5, err_msg=name
        )


def test_special_case_for_one_loader():
    """One stream alone, and OOD streams of different size, go the same way."""
    only_id = [s for s in make_streams(with_train=False) if s.role is Role.ID]
    detection = run([MSP()], streams=only_id)
    assert set(detection.results.scores["dataset"]) == {"val"}
    assert (detection.results.table.query("metric == 'accuracy'")["value"] > 0.9).all()


def test_module_and_callback_can_be_reused_for_a_second_run():
    module, detection = make_module(), OODDetection([MSP(), Mahalanobis()])
    tables = []
    for _ in range(2):
        data = OODDataModule(make_streams())
        make_trainer(detection).predict(module, data, return_predictions=False)
        tables.append(detection.results.table)
    pd.testing.assert_frame_equal(*tables)


def test_a_callback_that_is_used_again_never_keeps_the_fit_of_another_backbone():
    detection = OODDetection([Mahalanobis()])
    make_trainer(detection).predict(make_module(), OODDataModule(make_streams()), return_predictions=False)
    first = detection.results.scores["mahalanobis"].to_numpy()
    other = make_module()
    with torch.no_grad():
        other.network.conv.weight.mul_(torch.linspace(0.5, 2.0, 48).reshape(1, 3, 4, 4))
    with pytest.raises(FingerprintError, match="the fit of an earlier run belongs to"):
        make_trainer(detection).predict(other, OODDataModule(make_streams(with_train=False)), return_predictions=False)
    make_trainer(detection).predict(other, OODDataModule(make_streams()), return_predictions=False)
    expected = run([Mahalanobis()], module=other).results.scores["mahalanobis"].to_numpy()
    np.testing.assert_allclose(detection.results.scores["mahalanobis"].to_numpy(), expected, rtol=1e-9)
    assert not np.allclose(first, expected)


def test_callback_order_does_not_matter():
    class Other(pl.Callback):
        def on_predict_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
            assert len(outputs) == len(batch["key"])

    tables = []
    for order in (0, 1):
        detection = OODDetection([MSP(), KNN(k=3)])
        callbacks = [detection, Other()] if order else [Other(), detection]
        make_trainer(*callbacks).predict(make_module(), OODDataModule(make_streams()), return_predictions=False)
        tables.append(detection.results.table)
    pd.testing.assert_frame_equal(*tables)


def test_default_predict_with_predictions_works_too():
    detection = OODDetection([MSP()])
    predictions = make_trainer(detection).predict(make_module(), OODDataModule(make_streams(with_train=False)))
    assert len(predictions) == 4
    assert detection.results is not None


def test_bf16_mixed_scores_are_float32():
    """The dtype of the network does not change the dtype of the scores."""
    detection = run(seven(), trainer={"precision": "bf16-mixed"})
    assert detection.results.scores["msp"].dtype == np.float32
    assert detection.results.scores["mahalanobis"].dtype == np.float64
    assert detection.results.scores[detection.results.scores["dataset"] == "far"][list(SEVEN)].notna().all().all()


def test_odin_perturbs_inside_default_predict():
    """Gradients are available in inference mode, and other detectors are unaffected."""
    module = OODModule(CountingNet(6), transform=torch.nn.Identity())
    streams = make_streams(with_train=False)
    strong = run([MSP(), ODIN(epsilon=0.5, temperature=1.0)], module=module, streams=streams).results.scores
    none = run([MSP(), ODIN(epsilon=0.0, temperature=1.0)], module=module, streams=streams).results.scores
    assert (strong["odin"] != none["odin"]).mean() > 0.5
    assert (strong["msp"] == none["msp"]).all()


def test_detectors_that_ask_the_network_again_fit_and_score_in_a_run(caplog):
    """Also in training, and by the same number whatever the batches; each says before how often."""

    def scores(**settings):
        module = OODModule(CountingNet(6), transform=torch.nn.Identity())
        detectors = {"a": AdaSCALE(pixels=20.0), "l": AdaSCALE("l", pixels=20.0), "pro": PRO(), "iodin": IODIN()}
        with caplog.at_level("INFO"):
            return run(detectors, module=module, **settings).results.scores

    expected, got = scores(), scores(batch_size=7)
    assert "extra forward passes per image: a 2, l 2, pro 4, iodin 2" in caplog.text
    tests = expected["dataset"] != "train"
    for name in ("a", "l", "pro", "iodin"):
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-4)
        assert expected[name][tests].nunique() > 20
        assert expected[name][~tests].isna().all()


def test_saved_fits_are_used_again_and_refused_for_other_weights(tmp_path):
    """What is stored names what it belongs to."""
    first = run(seven(), output_dir=tmp_path, num_thumbnails=0)
    module = OODModule(CountingNet(6, dropout=0.2), name="tiny")
    with_module = {"fitted": tmp_path / "fitted", "streams": make_streams(with_train=False)}
    again = run(None, module=module, **with_module)
    for name in SEVEN:
        a = first.results.scores.query("dataset == 'far'")[name].to_numpy(np.float64)
        np.testing.assert_allclose(again.results.scores.query("dataset == 'far'")[name], a, rtol=1e-5, atol=1e-6)
    other = make_module()
    with torch.no_grad():
        other.network.get_submodule("head").weight[0, 0] += 1
    with pytest.raises(FingerprintError, match="belongs to another backbone"):
        run(None, module=other, **with_module)


def test_adding_ood_samples_changes_no_id_threshold(done):
    """Thresholds come from the ID set."""
    fewer = run(seven(), streams=make_streams(num_ood=6))
    kept = done.results.scores.query("dataset == 'val'")
    pd.testing.assert_frame_equal(kept, fewer.results.scores.query("dataset == 'val'"))


def test_every_logger_gets_every_value(tmp_path):
    """Every logger receives the values."""
    from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger

    loggers = [CSVLogger(tmp_path, name="csv"), TensorBoardLogger(tmp_path, name="tb")]
    detection = run([MSP(), Energy()], trainer={"logger": loggers})
    expected = detection.results.metrics_by_name()
    assert len(expected) > 20
    written = pd.read_csv(next((tmp_path / "csv").rglob("metrics.csv")))
    assert set(expected) <= set(written.columns)
    for name, value in expected.items():
        assert written[name].isna().all() if np.isnan(value) else np.isclose(written[name].dropna(), value).all(), name
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(next((tmp_path / "tb").rglob("events*")).parent), size_guidance={"scalars": 0})
    events.Reload()
    assert set(expected) <= set(events.Tags()["scalars"])


def test_degenerate_model_is_noticed():
    """The weights and bias of the head are all zero."""
    module = make_module()
    with torch.no_grad():
        for parameter in module.network.get_submodule("head").parameters():
            parameter.zero_()
    with (
        pytest.warns(UserWarning, match="same logits for all classes"),
        pytest.warns(FindingWarning, match="all 30 images of 'val' are predicted as class 0"),
    ):
        detection = run([MSP()], module=module, streams=make_streams(with_train=False))
    fpr = detection.results.table.query("metric == 'pooled_fpr95'")["value"]
    assert fpr.tolist() == [1.0]


def test_warnings_as_errors_lose_no_results(tmp_path):
    """Findings and skipped images are warned about after everything is saved."""
    module = make_module()
    with torch.no_grad():
        module.network.get_submodule("head").weight.zero_()
    streams = make_streams(with_train=False)
    broken = [Sample("bad", torch.zeros(3, 8, 8), error="unreadable"), Sample("good", torch.zeros(3, 8, 8), group=0)]
    streams.append(Stream("broken", Role.OOD, MemorySource(broken), ("one",)))
    for number, kind in enumerate(("skipped images", "predicted as class")):
        out = tmp_path / str(number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", message=f".*{kind}")
            with pytest.raises(UserWarning, match=kind):
                predict([MSP()], streams, module=module, on_error="skip", output_dir=out)
        assert Results.load(out).run.counts["val"] == 30
        assert (out / "report.html").is_file()


def test_run_record_says_what_was_run(done):
    record = done.results.run
    assert record.backbone.name == "tiny"
    assert record.versions["torch"]
    assert {s.name: s.images for s in record.data.streams}["train"] == 150
    assert set(record.time.mean) >= {"total", "preparation", "backbone", "statistics", "fit", "scores", "metrics"}
    assert set(record.ms_per_image) == set(SEVEN)


class Twice:
    """A source that breaks its promise: one key for two images."""

    def __len__(self) -> int:
        return 2

    def read(self, start: int, stop: int):
        return (Sample("0", torch.full((3, 8, 8), i / 2)) for i in range(start, stop))


def test_scores_survive_when_they_cannot_be_evaluated(tmp_path):
    """Two images of one key are an error; the pass over the images is not lost."""
    far = Stream("far", Role.OOD, Twice())
    streams = [*(s for s in make_streams(with_train=False) if s.role is Role.ID), far]
    with pytest.raises(DataError, match=r"far/0(?s:.*) kept in .*unfinished; read finished .* with Results\.load"):
        run([MSP()], streams=streams, output_dir=tmp_path / "out")
    kept = pd.concat([pd.read_parquet(part) for part in (tmp_path / "out" / "unfinished" / "scores").iterdir()])
    assert len(kept) == 32


def test_what_a_run_leaves_on_disk(tmp_path):
    detection = run([MSP(), Mahalanobis()], output_dir=tmp_path / "out")
    left = {f.name for f in (tmp_path / "out").iterdir()}
    assert {"table.csv", "scores.parquet", "run.json", "fitted", "report.html"} <= left
    pd.testing.assert_frame_equal(Results.load(tmp_path / "out").table, detection.results.table)
