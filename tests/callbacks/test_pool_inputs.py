"""Errors about pools: split lists, repeated images, classes without images, unknown numbers of classes, NaN scores."""

import math
import re
from dataclasses import replace

import pytest
import torch

from oodlit import Role
from oodlit.datamodules import OODDataModule, ShardSource, severity_pool
from oodlit.datamodules.severity.split import Part, part_of
from oodlit.datamodules.sources import MemorySource
from oodlit.datamodules.stream import Sample, Stream
from oodlit.detectors import MSP, Reference, TrainFreeDetector
from oodlit.errors import DataError, InvalidArgumentError
from oodlit.results import DatasetInfo
from tests.callbacks.pool_script import make_pool, samples
from tests.callbacks.support import make_module, run
from tests.callbacks.test_pools import id_stream


class Reader:
    """A source that does not tell its keys beforehand, as shards do not."""

    def __init__(self, found: list[Sample]) -> None:
        self.found = found

    def __len__(self) -> int:
        return len(self.found)

    def read(self, start, stop):
        return iter(self.found[start:stop])


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Part.ESTIMATION, r"pool 'pool': estimation images .* distinct keys; repeated: 2 of 294"),
        (Part.TEST, r"repeated keys: 2 \(first: pool/00/000, pool/00/002\); every image must"),
    ],
)
def test_an_image_that_comes_twice(part, message):
    found = samples()
    again = [sample for sample in found if part_of(sample.key, 0.4) is part][:2]
    pool = Stream("pool", Role.OOD, Reader([*found, *again]), make_pool().class_names)
    with pytest.raises(DataError, match=message):
        run([MSP()], streams=[*id_stream(), severity_pool(pool, test_share=0.4)])


def test_what_the_classifier_knows_is_asked_for_where_nobody_says_it():
    with pytest.raises(InvalidArgumentError, match=r"pool 'pool': .* no logits, and the ID set has no class names"):
        DatasetInfo("pool", Role.POOL, ("a", "b"), id_classes=0)


def test_a_list_of_other_paths_is_distinguished_from_classes_without_images(tmp_path):
    plain, split = replace(make_pool(), role=Role.OOD, split=None), tmp_path / "split.csv"
    split.write_text("\n".join(f"photos/{sample.key},test" for sample in samples()))
    with pytest.raises(
        DataError, match=r"split\.csv lists no image of the pool; .*'00/000', but the list has 'photos/00/000'"
    ):
        severity_pool(plain, split=split)
    split.write_text("\n".join(f"{sample.key},test" for sample in samples()))
    with pytest.raises(DataError, match=r"got no estimation images in 23 of 23 classes"):
        severity_pool(plain, split=split)


@pytest.mark.filterwarnings("ignore::oodlit.metrics.numerics.undefined.UndefinedMetricWarning")
@pytest.mark.parametrize("part", list(Part))
def test_a_class_without_images_of_a_part(part):
    """Before the run where the source knows its keys; else at its end: no number, and the reason."""
    found = [s for s in samples() if s.group != 4 or part_of(s.key, 0.4) is not part]
    names = make_pool().class_names
    message = rf"1 of 23 classes \(first: 'class 4'\) has no {part} images"
    early = (
        rf"pool 'pool': .* got no {part} images in 1 of 23 classes \(first: 'class 4'; split: test share 0\.4 by key"
    )
    with pytest.raises(DataError, match=early):
        severity_pool(Stream("pool", Role.OOD, MemorySource(found), names), test_share=0.4)
    pool = severity_pool(Stream("pool", Role.OOD, Reader(found), names), test_share=0.4)
    late = run([MSP()], streams=[*id_stream(), pool]).results
    assert math.isnan(late.value("auroc", dataset="pool", detector="msp", ood_class="s0"))
    assert math.isnan(late.value("mean_fpr95", dataset="pool", detector="msp"))
    [reason] = {entry.reason for entry in late.run.undefined if entry.dataset == "pool"}
    assert re.match(message, reason)
    assert late.levels("pool")["auroc"].isna().all()
    with pytest.raises(InvalidArgumentError, match=message):
        late.severities("pool")
    rest = late.recompute(classes={"pool": [name for name in names if name != "class 4"]})
    assert not rest.levels("pool")["auroc"].isna().any()


def test_fewer_classes_than_the_classifier_before_the_first_image():
    module = make_module()
    with pytest.raises(InvalidArgumentError, match="pool 'pool': the pool has 5 classes, but each level requires 6"):
        run([MSP()], module=module, streams=[*id_stream(), make_pool(num_classes=5)])


def test_two_classes_of_one_name():
    names = ("a", "b", "c", "d", "e", "f", "a")
    with pytest.raises(InvalidArgumentError, match="'pool': two classes are called 'a'; rename one"):
        Stream("pool", Role.OOD, MemorySource(samples(num_classes=7)), names)


def test_folders_and_shards_as_pools(tmp_path):
    from tests.tiny_shards import write_tiny_shards

    write_tiny_shards(tmp_path / "shards", (30, 30), name="odd", role=Role.OOD)
    pool = severity_pool(tmp_path / "shards", name="mine", test_share=0.5)
    assert (pool.name, pool.role) == ("mine", Role.POOL)
    assert isinstance(pool.source, ShardSource)
    for name in ("cat", "dog"):
        (tmp_path / "folder" / name).mkdir(parents=True)
        for i in range(12):
            (tmp_path / "folder" / name / f"{i}.png").write_bytes(b"...")
    pool = severity_pool(tmp_path / "folder")
    assert (pool.name, pool.class_names) == ("folder", ("cat", "dog"))
    data = OODDataModule([*id_stream(), pool], max_images=4)
    assert [stream.split for stream in data.streams] == [None, pool.split]


class NaNOn(TrainFreeDetector):
    """Gives NaN for one image."""

    needs = frozenset({"logits"})
    reference = Reference("t", "a", "v", 2024, "https://example.org")

    def _score(self, outputs):
        is_bad = torch.tensor([key == "pool/03/001" for key in outputs.keys])
        return outputs.max_logits.masked_fill(is_bad, math.nan)


def test_nan_of_an_estimation_image_takes_the_detector_out():
    assert part_of("03/001", 0.4) is Part.ESTIMATION
    found = run([MSP(), NaNOn()], streams=[*id_stream(), make_pool()]).results
    assert found.detectors == ("msp",)
    assert "returned NaN for 1 of" in found.run.not_applicable["nanon"]
    assert "pool/03/001" in found.run.not_applicable["nanon"]
    assert set(found.estimates["detector"]) == {"msp"}
