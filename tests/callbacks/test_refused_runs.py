"""What a run refuses, before its first batch where that can be, and which detectors it goes on without."""

import re

import pytest
import pytorch_lightning as pl
import torch

from oodlit import OODModule, Role
from oodlit.callbacks import OODDetection
from oodlit.datamodules.sources import MemorySource
from oodlit.datamodules.stream import Sample, Stream
from oodlit.detectors import KNN, MSP, Mahalanobis, TrainFreeDetector, ViM
from oodlit.detectors.contract.reference import Reference
from oodlit.errors import InvalidArgumentError, NonFiniteScoreError, RequirementError
from oodlit.outputs import Outputs
from oodlit.results import FindingWarning
from oodlit.runs.choice import PROBE_IMAGES
from tests.callbacks.support import CountingNet, make_module, make_streams, make_trainer, run


class _BadNaN(TrainFreeDetector):
    needs = frozenset({"logits"})
    reference = Reference("t", "a", "v", 2024, "https://example.org")

    def _score(self, outputs: Outputs) -> torch.Tensor:
        scores = outputs.max_logits.clone()
        scores[0] = torch.nan
        return scores


def test_nan_scores_name_detector_set_count_and_keys():
    message = r"'bad'.* NaN for 1 of 16 .*'val' \(first: val/0000"
    with pytest.raises(NonFiniteScoreError, match=message):
        run({"bad": _BadNaN(), "msp": MSP()}, strict=True)
    with pytest.raises(NonFiniteScoreError, match=message):
        run({"bad": _BadNaN()})
    results = run({"bad": _BadNaN(), "msp": MSP()}).results
    assert results.detectors == ("msp",)
    assert re.search(message, results.run.not_applicable["bad"])


def test_a_bank_too_small_for_k_is_known_before_the_pass_over_the_training_images():
    """Left out with the reason like whatever else does not apply; refused with `strict`, or if nothing is left."""
    reason = "needs at least 1000 training images, but the training set has 150"
    for detectors, options in ([KNN(k=1000)], {}), ([MSP(), KNN(k=1000)], {"strict": True}):
        module = OODModule(CountingNet(6))
        with pytest.raises(RequirementError, match=f"knn: {reason}"):
            run(detectors, module=module, **options)
        assert len(set(module.network.seen)) == PROBE_IMAGES
    with pytest.warns(UserWarning, match=f"'far' is skipped: it {reason}"):
        detection = run({"far": KNN(k=1000), "near": KNN(k=10), "msp": MSP()})
    assert detection.results.run.not_applicable == {"far": reason}
    assert set(detection.results.table["detector"]) == {"near", "msp", "model"}


def test_unknown_backbone_names_the_nearest():
    with pytest.raises(LookupError, match="resnet50"):
        OODModule("resnet5O")


def test_train_stream_without_labels_names_keys():
    train = Stream("train", Role.TRAIN, MemorySource([Sample("7", torch.rand(3, 8, 8))]))
    streams = [train, *make_streams(with_train=False)]
    with pytest.raises(Exception, match="'train': key '7': training images require a label"):
        run([Mahalanobis()], streams=streams)


@pytest.mark.filterwarnings("ignore:.*undefined .NaN.")
@pytest.mark.filterwarnings("ignore:.*the features do not determine")
def test_a_detector_that_does_not_apply_is_left_out_with_the_reason():
    from tests.networks import TinyHiddenHeadNet

    module = OODModule(TinyHiddenHeadNet(), transform=torch.nn.Identity())
    with (
        pytest.warns(FindingWarning, match="chance level"),
        pytest.warns(UserWarning, match=r"'vim' is skipped: it needs the linear head"),
    ):
        detection = run([MSP(), ViM()], module=module)
    assert "head" in detection.results.run.not_applicable["vim"]
    assert "vim" not in set(detection.results.table["detector"])
    text = r"not applicable: 1 of 2 detectors \(vim: needs the linear head.*omit --strict\)"
    with pytest.raises(RequirementError, match=text):
        run([MSP(), ViM()], module=module, strict=True)
    with pytest.raises(RequirementError, match=r"not applicable: 1 of 1 detectors .*; choose other detectors$"):
        run([ViM()], module=module, strict=True)


def test_unfitted_detector_without_train_stream_is_refused_before_the_first_batch():
    module = OODModule(CountingNet(6))
    with pytest.raises(RequirementError, match="knn: needs training images"):
        run([KNN(k=3)], streams=make_streams(with_train=False), module=module)
    assert len(set(module.network.seen)) == PROBE_IMAGES


def test_plain_loaders_are_refused_with_the_way_out():
    loader = torch.utils.data.DataLoader(torch.rand(4, 3, 8, 8))
    way_out = r"predict\(module, OODDataModule\(\[Stream\(.*DatasetSource"
    for data, given in ((loader, "no data module"), (pl.LightningDataModule(), "a LightningDataModule")):
        with pytest.raises(InvalidArgumentError, match=f"expected an OODDataModule, got {given}.*{way_out}"):
            make_trainer(OODDetection([MSP()])).predict(make_module(), data)


@pytest.mark.parametrize("options", [{"tpr": 95}, {"rule": "nearest"}, {"unit_test_limit": -0.1}])
def test_settings_are_checked_before_the_run(options):
    with pytest.raises(InvalidArgumentError, match=next(iter(options))):
        OODDetection([MSP()], **options)


def test_a_folder_that_cannot_be_written_is_refused_before_the_first_batch(tmp_path):
    (tmp_path / "file").write_text("in the way")
    module = OODModule(CountingNet(6))
    with pytest.raises(InvalidArgumentError, match="cannot write to this folder"):
        run([MSP()], module=module, output_dir=tmp_path / "file")
    assert not module.network.seen


def test_parts_of_results_without_a_record_are_refused_before_the_first_batch(tmp_path):
    (tmp_path / "scores.parquet").write_text("mine")
    module = OODModule(CountingNet(6))
    with pytest.raises(InvalidArgumentError, match=r"contains scores\.parquet but no run\.json"):
        run([MSP()], module=module, output_dir=tmp_path)
    assert not module.network.seen
    assert (tmp_path / "scores.parquet").read_text() == "mine"
