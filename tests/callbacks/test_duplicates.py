"""Images that are in two sets at once are a finding: the most common slip, after which all numbers look too good."""

import numpy as np
import pytest
import torch

from oodlit import Role
from oodlit.callbacks import OODDetection
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.sources import MemorySource
from oodlit.datamodules.stream import Sample, Stream
from oodlit.detectors import KNN, MSP
from oodlit.recorded import evaluate_arrays
from oodlit.results import FindingWarning
from oodlit.runs.images.duplicates import MOST, digests_of
from tests.callbacks.support import make_module, make_trainer

GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.rand(60, 3, 8, 8, generator=GENERATOR)
pytestmark = pytest.mark.filterwarnings("ignore::oodlit.results.FindingWarning")


def stream(name: str, role: Role, images: torch.Tensor) -> Stream:
    labelled = role in (Role.TRAIN, Role.ID, Role.SHIFT)
    samples = [Sample(f"{name}-{i}", image, label=i % 6 if labelled else -1) for i, image in enumerate(images)]
    return Stream(name, role, MemorySource(samples))


def duplicates(*streams: Stream, batch_size: int = 7, detectors=None) -> list[str]:
    detection = OODDetection(detectors or [KNN(k=1)])
    data = OODDataModule(streams, batch_size=batch_size)
    make_trainer(detection).predict(make_module(), data, return_predictions=False)
    return [finding.text for finding in detection.results.run.findings if finding.kind == "duplicates"]


TRAIN = stream("train", Role.TRAIN, IMAGES[:30])
ID = stream("val", Role.ID, IMAGES[30:45])
FAR = stream("far", Role.OOD, IMAGES[45:])


def test_sets_of_their_own_have_no_finding() -> None:
    assert duplicates(TRAIN, ID, FAR) == []


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_the_id_set_that_is_the_training_set(batch_size: int) -> None:
    (text,) = duplicates(TRAIN, stream("val", Role.ID, IMAGES[:30]), FAR, batch_size=batch_size)
    assert text.startswith("'train' (train) and 'val' (id) share images: 30 of the 30 images of 'train'.")


def test_a_few_images_in_another_order() -> None:
    (text,) = duplicates(TRAIN, ID, stream("far", Role.OOD, torch.cat([IMAGES[45:], IMAGES[[40, 33]]])))
    assert text.startswith("'val' (id) and 'far' (ood) share images: 2 of the 15 images of 'val'.")


def test_shifted_images_and_equal_roles_may_share_images() -> None:
    same = stream("shifted", Role.SHIFT, IMAGES[30:45]), stream("other", Role.OOD, IMAGES[45:])
    assert duplicates(TRAIN, ID, FAR, *same) == []


def test_arrays() -> None:
    logits = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    results = evaluate_arrays(id={"logits": logits}, ood={"near": {"logits": logits[5:]}}, detectors=[MSP()])
    texts = [finding.text for finding in results.run.findings if finding.kind == "duplicates"]
    assert len(texts) == 1
    assert texts[0].startswith("'id' (id) and 'near' (ood) share images: 15 of the 20 images of 'id'.")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 8, 8), (3, 200, 200), (1,)])
def test_digests_tell_images_apart_in_any_batch(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    images = torch.rand(40, *shape, generator=GENERATOR).mul(100).to(dtype)
    whole = digests_of(images)
    assert whole.dtype == torch.int64
    torch.testing.assert_close(torch.cat([digests_of(part) for part in images.split(9)]), whole, rtol=0, atol=0)
    distinct = len({tuple(image.flatten()[:: -(-image.numel() // MOST)].tolist()) for image in images})
    assert len(set(whole.tolist())) == distinct


def test_the_finding_is_a_warning() -> None:
    with pytest.warns(FindingWarning, match="share images: 15 of the 15 images of 'val'"):
        duplicates(TRAIN, ID, stream("far", Role.OOD, IMAGES[30:45]), detectors=[MSP()])
