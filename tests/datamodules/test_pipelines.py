"""Pipelines of webdataset as streams, and shards as a pipeline: every sample once, or an error that names keys."""

import io
import os

import numpy as np
import pytest
import torch
import webdataset as wds
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset
from torchvision.transforms.functional import to_tensor

from oodlit import Results, Role
from oodlit.callbacks import OODDetection
from oodlit.datamodules import PipelineSource, Sample, pipeline_stream, shard_pipeline, shard_stream
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.pipelines.pipeline_loader import PipelineLoader
from oodlit.datamodules.pipelines.source import sample_of
from oodlit.datamodules.stream_identity import identity
from oodlit.detectors import MSP, Mahalanobis
from oodlit.errors import DataError, InvalidArgumentError, OodlitError, PreprocessingError
from oodlit.runs.complete import check_complete
from tests.callbacks.processes import check_ended, run_together
from tests.callbacks.support import make_module, make_trainer
from tests.datamodules import pipeline_script
from tests.tiny_shards import write_tiny_shards

pytestmark = [
    pytest.mark.filterwarnings("ignore::oodlit.results.FindingWarning"),  # of labels that mean nothing
    # webdataset leaves its files to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:.*worker processes in total"),
]

SIZES = (5, 1, 3, 4)


def tensors(count: int, name: str = "s") -> list[dict]:
    return [
        {"__key__": f"{name}{i:03d}", "png": torch.full((3, 8, 8), i / count), "cls": i % 6, "json": {"group": i % 2}}
        for i in range(count)
    ]


def streams(count: int = 12) -> list:
    return [
        pipeline_stream(tensors(30, "t"), name="train", role=Role.TRAIN, count=30),
        pipeline_stream(tensors(count, "v"), name="val", role=Role.ID, count=count),
        pipeline_stream(tensors(7, "o"), name="far", role=Role.OOD, count=7, class_names=("cat", "dog")),
    ]


def run(data, detectors=None):
    detection = OODDetection(detectors or [MSP(), Mahalanobis()])
    make_trainer(detection).predict(make_module(), data, return_predictions=False)
    return detection.results


@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_a_pipeline_is_a_stream(batch_size):
    results = run(OODDataModule(streams(), batch_size=batch_size))
    scored = results.scores[results.scores["dataset"] != "train"]
    assert sorted(scored["key"]) == sorted([f"far/o{i:03d}" for i in range(7)] + [f"val/v{i:03d}" for i in range(12)])
    assert scored.set_index("key").loc["val/v008", "label"] == 2
    assert results.dataset("far").class_names == ("cat", "dog")
    assert np.isfinite(results.value("mean_auroc", dataset="far", detector="mahalanobis"))


def test_scores_are_those_of_the_exact_reader(tmp_path):
    for name, role in (("val", Role.ID), ("far", Role.OOD)):
        write_tiny_shards(tmp_path / name, SIZES, name=name, role=role)
    urls = {name: [str(path) for path in sorted((tmp_path / name).glob("*.tar"))] for name in ("val", "far")}
    exact = [
        shard_stream(tmp_path / name, role=role, name=name) for name, role in (("val", Role.ID), ("far", Role.OOD))
    ]
    piped = [
        pipeline_stream(
            wds.WebDataset(urls[stream.name], shardshuffle=False).decode(),  # as users have them
            name=stream.name,
            role=stream.role,
            count=sum(SIZES),
            class_names=stream.class_names,
            to_sample=from_decoded,
        )
        for stream in exact
    ]
    one, other = (run(OODDataModule(s, transform=to_tensor), [MSP()]) for s in (exact, piped))
    assert list(one.scores["key"]) == list(other.scores["key"])
    np.testing.assert_allclose(one.scores["msp"], other.scores["msp"], rtol=1e-6)


def from_decoded(item) -> Sample:
    return sample_of({name: value for name, value in item.items() if name in ("__key__", "png", "cls", "json")})


class Cut(IterableDataset):
    """A pipeline that gives each worker its share, or not."""

    def __init__(self, items: list, *, mode: str = "cut") -> None:
        self.items, self.mode = items, mode

    def __iter__(self):
        _, _, worker, workers = wds.utils.pytorch_worker_info()
        step = workers if self.mode != "whole" else 1
        items = self.items[worker if step > 1 else 0 :: step]
        if self.mode == "lost" and workers > 1:
            items = items[1:]
        if self.mode == "forever":
            while True:
                yield from items
        yield from items


@given(st.integers(1, 20), st.integers(1, 5))
def test_without_workers_every_sample_comes_once(count, batch_size):
    stream = pipeline_stream(Cut(tensors(count)), name="far", role=Role.OOD, count=count, class_names=("a", "b"))
    batches = list(PipelineLoader(stream, batch_size=batch_size))
    assert [key for batch in batches for key in batch["key"]] == [f"far/s{i:03d}" for i in range(count)]
    assert max(len(batch["key"]) for batch in batches) <= batch_size
    check_complete(stream, None)


def test_workers_share_a_pipeline_that_cuts_itself():
    stream = pipeline_stream(Cut(tensors(11)), name="far", role=Role.OOD, count=11, class_names=("a", "b"))
    keys = [key for batch in PipelineLoader(stream, batch_size=2, num_workers=2) for key in batch["key"]]
    assert sorted(keys) == [f"far/s{i:03d}" for i in range(11)]
    check_complete(stream, None)


@pytest.mark.parametrize(
    ("mode", "count", "message"),
    [
        ("whole", 11, r"expected 11 samples .*read 22; keys read more than once: 11 \('s000', 's001', 's002', ...\)"),
        ("lost", 11, r"expected 11 samples .*read 9; keys never read: 2 \('s000', 's001'\)"),
        ("cut", 12, "expected 12 samples .*read 11; a single process reads 11"),
        ("cut", 10, "expected 10 samples .*read 11"),
    ],
)
def test_missing_and_repeated_keys_are_named(mode, count, message):
    stream = pipeline_stream(
        Cut(tensors(11), mode=mode), name="far", role=Role.OOD, count=count, class_names=("a", "b")
    )
    list(PipelineLoader(stream, batch_size=2, num_workers=2))
    with pytest.raises(DataError, match=message) as caught:
        check_complete(stream, None)
    assert "\n" not in str(caught.value)


def test_a_run_does_not_average_over_missing_samples():
    data = streams()
    data[2] = pipeline_stream(Cut(tensors(7)), name="far", role=Role.OOD, count=8, class_names=("cat", "dog"))
    with pytest.raises(DataError, match=r"expected 8 samples .* read 7[;.]"):
        run(OODDataModule(data))
    data[0] = pipeline_stream(Cut(tensors(29)), name="train", role=Role.TRAIN, count=30)
    with pytest.raises(DataError, match=r"'train': expected 30 samples .* read 29[;.]"):
        run(OODDataModule(data))


def test_a_pipeline_without_end_is_refused():
    stream = pipeline_stream(Cut(tensors(5), mode="forever"), name="far", role=Role.OOD, count=6)
    with pytest.raises(DataError, match="repeats or resamples"):
        list(PipelineLoader(stream, batch_size=2))


class Failing(IterableDataset):
    def __iter__(self):
        yield from tensors(2)
        raise KeyError("jpg")


def test_what_a_pipeline_raises_is_named():
    stream = pipeline_stream(Failing(), name="far", role=Role.OOD, count=6)
    with pytest.raises(PreprocessingError, match=r"'far': the pipeline failed .KeyError: 'jpg'"):
        list(PipelineLoader(stream, batch_size=1))


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"jpg": b""}, "dictionary with '__key__' .*; got dict {'jpg': b''}"),
        ({"__key__": "a"}, "expected one image in item 'a', got 0"),
        ({"__key__": "a", "jpg": b"", "png": b""}, "expected one image in item 'a', got 2"),
        ({"__key__": "a", "jpg": b"", "cls": "cat"}, "label and group of 'a' to be integers, got 'cat'"),
        ({"__key__": "a", "jpg": 3}, "image 'a' as bytes, .*got int"),
        (b"...", "got bytes b'...'"),
        ((1, 2), r"with a key of type str; got tuple \(1, 2\)"),
    ],
)
def test_items_that_are_no_samples_are_refused(item, message):
    with pytest.raises(DataError, match=message):
        sample_of(item)


def test_what_can_be_read_once_only_is_refused():
    with pytest.raises(InvalidArgumentError, match="that can be iterated repeatedly, got generator"):
        PipelineSource((item for item in tensors(2)), 2)
    with pytest.raises(InvalidArgumentError, match="got 0"):
        PipelineSource(tensors(2), 0)


def test_reading_alone_leaves_the_environment():
    before = dict(os.environ)
    samples = PipelineSource(Cut(tensors(4)), 4).read(1, 3)
    assert next(samples).key == "s001"
    assert dict(os.environ) == before
    assert [sample.key for sample in samples] == ["s002"]
    assert dict(os.environ) == before


def test_unusable_samples_are_skipped_and_counted():
    items = tensors(4)
    items[2] = {"__key__": "bad", "png": b"no image"}
    data = streams()
    data[2] = pipeline_stream(items, name="far", role=Role.OOD, count=4, class_names=("cat", "dog"))
    with pytest.warns(UserWarning, match="skipped images: 1"):
        results = run(OODDataModule(data, on_error="skip"))
    assert results.run.skipped[0].key == "far/bad"


# --- shards as a pipeline ---------------------------------------------------------------------------------------------


def test_shards_are_a_pipeline_for_training(tmp_path):
    write_tiny_shards(tmp_path, SIZES, name="train", role=Role.TRAIN)
    pipeline = shard_pipeline(tmp_path, to_tensor)
    pairs = list(DataLoader(pipeline, batch_size=None))
    expected = shard_stream(tmp_path, role=Role.TRAIN, name="train")
    samples = list(expected.source.read(0, len(expected)))
    assert [label for _, label in pairs] == [sample.label for sample in samples]
    with Image.open(io.BytesIO(samples[0].image)) as image:
        assert torch.equal(pairs[0][0], to_tensor(image.convert("RGB")))
    assert len(pipeline) == sum(SIZES)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shuffled_pipeline_gives_the_same_samples_in_another_order(tmp_path, workers):
    write_tiny_shards(tmp_path, SIZES, name="train", role=Role.TRAIN)
    plain = [image.sum().item() for image, _ in shard_pipeline(tmp_path, to_tensor)]
    loader = DataLoader(shard_pipeline(tmp_path, to_tensor, shuffle=20, seed=3), batch_size=None, num_workers=workers)
    shuffled = [image.sum().item() for image, _ in loader]
    assert sorted(shuffled) == pytest.approx(sorted(plain))
    assert shuffled != plain


def test_pipelines_of_other_shards_are_other_data():
    """What was recorded of one set would be read for another one of the same name and size."""

    def identity_of(urls, **attributes):
        pipeline = wds.WebDataset(urls, shardshuffle=False).decode("pil")
        for name, value in attributes.items():
            setattr(pipeline, name, value)
        return identity(pipeline_stream(pipeline, name="set", role=Role.OOD, count=4))

    assert identity_of("a/mine-{00..03}.tar") == identity_of("b/mine-{00..03}.tar")
    assert identity_of("mine-{00..03}.tar") != identity_of("other-{00..03}.tar")
    assert identity_of("mine-{00..03}.tar") != identity_of("mine-{00..04}.tar")
    assert identity_of("mine-{00..03}.tar", content="v1") != identity_of("mine-{00..03}.tar", content="v2")


def test_a_folder_without_shards_is_refused(tmp_path):
    with pytest.raises(OodlitError):
        shard_pipeline(tmp_path)


@pytest.mark.integration
@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_processes_share_a_pipeline(tmp_path, processes):
    for name, role in (("val", Role.ID), ("far", Role.OOD)):
        write_tiny_shards(tmp_path / name, SIZES, name=name, role=role)
    check_ended(run_together(pipeline_script.main, processes, tmp_path, "cut", folder=tmp_path / "logs"))
    scores = Results.load(tmp_path / "cut").scores
    assert len(scores) == 2 * sum(SIZES)
    assert scores["key"].is_unique
    for done in run_together(pipeline_script.main, processes, tmp_path, "whole", folder=tmp_path / "logs"):
        assert done.code != 0
        assert f"read {processes * sum(SIZES)}" in done.stderr
        assert "keys read more than once" in done.stderr
