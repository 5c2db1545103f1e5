"""What is wrong about a pool is said in one line: lists, repeated images, nobody who knows the number of classes."""

from dataclasses import replace

import pytest

from oodlit import Role
from oodlit.datamodules import severity_pool
from oodlit.datamodules.severity.split import Part, part_of
from oodlit.datamodules.stream import Stream
from oodlit.detectors import MSP
from oodlit.errors import DataError, InvalidArgumentError
from oodlit.results import DatasetInfo
from tests.callbacks.pool_script import make_pool, samples
from tests.callbacks.support import run
from tests.callbacks.test_pools import Reader, id_stream


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
