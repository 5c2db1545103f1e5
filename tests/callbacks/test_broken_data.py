"""Images, labels and transforms around a run: skipped, wrong, of another kind, or without a transform."""

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from PIL import Image

from oodlit import OODModule, Role
from oodlit.callbacks import OODDetection
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.sources import MemorySource
from oodlit.datamodules.stream import Sample, Stream
from oodlit.detectors import MSP, ODIN, Mahalanobis
from oodlit.errors import DataError, InvalidArgumentError
from oodlit.testing.backbones import TinyConvNet
from tests.callbacks.support import make_streams, make_trainer, predict, run, stream

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*undefined .NaN."),
    pytest.mark.filterwarnings("ignore:the classifier has an accuracy"),  # the labels are arbitrary here
]


@pytest.mark.filterwarnings("ignore:skipped images")
def test_skipped_batches_and_streams_are_counted_and_named():
    far = stream("far", Role.OOD, broken=range(4))
    detection = predict([MSP()], [stream("val", Role.ID, 8, broken=(2, 3)), far], on_error="skip")
    record = detection.results.run
    assert record.counts == {"val": 6, "far": 0}
    assert [image.key for image in record.skipped] == ["far/0", "far/1", "far/2", "far/3", "val/2", "val/3"]
    assert np.isnan(detection.results.value("auroc", dataset="far", detector="msp"))
    assert "there is no OOD score" in {value.reason for value in record.undefined}


@pytest.mark.filterwarnings("ignore:skipped images")
def test_many_broken_images_at_the_start_do_not_stop_a_run_that_skips():
    streams = [stream("val", Role.ID, 40, broken=range(33)), stream("far", Role.OOD)]
    assert predict([MSP()], streams, on_error="skip").results.run.counts["val"] == 7


def test_id_stream_without_a_usable_image():
    streams = [stream("val", Role.ID, broken=range(4)), stream("far", Role.OOD)]
    with pytest.raises(DataError, match=r"'val': none of 4 images can be used \(first: val/0, broken"):
        predict([MSP()], streams, on_error="skip")


def test_train_stream_without_a_usable_image_says_why_nothing_is_fitted():
    streams = [stream("train", Role.TRAIN, 6, broken=range(6)), stream("val", Role.ID)]
    with pytest.raises(
        DataError, match=r"none of the 6 training images of 'train' .* \(6 were skipped .* train/0, bro"
    ):
        predict([Mahalanobis()], streams, on_error="skip")


@pytest.mark.parametrize("role", [Role.TRAIN, Role.ID, Role.SHIFT])
def test_labels_beyond_the_classes_of_the_network_are_refused(role):
    others = [s for s in make_streams() if s.role is not role]
    with pytest.raises(DataError, match=r"'odd': 'odd/0' has label 9, but the network has 6 classes, 0..5"):
        predict([Mahalanobis()], [*others, stream("odd", role, label=9)])


@pytest.mark.parametrize("group", [-1, 2])
def test_groups_without_a_name_are_refused_at_the_first_batch(group):
    streams = [stream("val", Role.ID), stream("far", Role.OOD, names=("a", "b"), group=group)]
    with pytest.raises(DataError, match=rf"'far': key '0': group {group} is out of range for 2 class names"):
        predict([MSP()], streams)


@pytest.mark.parametrize("image", [torch.rand(1, 8, 8), torch.zeros(3, 8, 8, dtype=torch.uint8)])
def test_a_stream_of_other_images_is_named(image):
    with pytest.raises(
        DataError, match=r"'far': the images of the batch that begins with 'far/0' .* but the ID set has \(3, 8, 8\)"
    ):
        predict([MSP()], [stream("val", Role.ID), stream("far", Role.OOD, image=image)])


def test_streams_of_one_image_and_without_labels():
    streams = [stream("val", Role.ID, 1, label=-1), stream("far", Role.OOD, 1)]
    results = predict([MSP()], streams).results
    assert results.value("fpr95", dataset="far", detector="msp") in (0.0, 1.0)
    assert "accuracy of 'val' could not be computed, because the images have no labels" in results.run.notes


def test_iterable_of_ten_with_two_workers():
    """Workers repeat streamed data."""
    streams = [stream("val", Role.ID, 9), stream("far", Role.OOD, 10)]
    keys = run([MSP()], streams=streams, batch_size=3, num_workers=2).results.scores["key"]
    assert sorted(keys) == sorted([*(f"val/{i}" for i in range(9)), *(f"far/{i}" for i in range(10))])


def test_two_training_streams_are_one_training_set():
    streams = [stream("train", Role.TRAIN, 30), stream("more", Role.TRAIN, 20), stream("val", Role.ID)]
    results = predict([Mahalanobis()], streams).results
    assert results.run.counts["train+more"] == 50
    assert not [note for note in results.run.notes if "were scored" in note]


def test_pil_images_without_a_transform():
    streams = [stream("val", Role.ID, image=Image.new("RGB", (8, 8)))]
    with pytest.raises(InvalidArgumentError, match="require a transform"):
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
        assert detection.results.run.backbone.transform == f"Scaled({scale})"
        scores.append(detection.results.scores["msp"])
    assert not np.allclose(*scores)


def test_a_fit_belongs_to_the_transform_of_the_data(tmp_path):
    """The data module's transform counts where it has one."""
    predict([Mahalanobis()], picture_streams(), transform=Scaled(1.0), output_dir=tmp_path, num_thumbnails=0)
    saved = {"fitted": tmp_path / "fitted"}
    predict(None, picture_streams()[1:], transform=Scaled(1.0), **saved)
    with pytest.raises(ValueError, match="the transform differs"):
        predict(None, picture_streams()[1:], transform=Scaled(2.0), **saved)


def test_step_of_odin_follows_the_transform_of_the_data():
    """Input perturbation uses the constants of the transform."""
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
