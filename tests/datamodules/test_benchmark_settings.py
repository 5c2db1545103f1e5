"""Settings of benchmarks that cannot be meant: wrong sets, classes, shards of another set, and means."""

from typing import Any

import numpy as np
import pytest

from oodlit.datamodules import Benchmark, ImageNetBenchmark
from oodlit.datamodules.benchmarks.tables.description import BenchmarkDescription, BenchmarkSet
from oodlit.errors import DataError, InvalidArgumentError, UnknownNameError
from tests.datamodules.test_benchmark_tables import root, toy_lists  # noqa: F401


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"sets": "sun"}, "'clip-four'.*got 'sun'"),
        ({"sets": []}, "a non-empty list of .*names"),
        ({"sets": ["sun", "sun"]}, "a non-empty list of .*names"),
        ({"locations": {"sun": "places"}}, "expected shards of 'sun', got .*'places'"),
        ({"locations": {"imagenet_val": "sun"}}, "expected shards of 'imagenet_val', got .*'sun'"),
        ({"dropped_as": "others"}, "dropped_as='others' requires class_subset"),
        ({"class_subset": [0, 1.5]}, r"expected class indices from 0 to 999, got 1\.5"),
        ({"class_subset": [0, "tench", 5]}, "expected different classes, but 'tench' is the same as another"),
        ({"class_subset": [3]}, "expected at least two different classes, got only 3"),
        ({"evaluation": {"ruel": "attained"}}, "unknown setting 'ruel' in evaluation=; did you mean 'rule'"),
    ],
)
def test_settings_that_cannot_be_meant(options: dict[str, Any], match: str, root) -> None:  # noqa: F811
    options |= {"locations": {name: root / other for name, other in options.get("locations", {}).items()}}
    with pytest.raises((DataError, InvalidArgumentError, UnknownNameError), match=match):
        Benchmark("clip-four", root, complete=False, **options)


def test_classes_of_any_sequence(root) -> None:  # noqa: F811
    for chosen in (range(3), np.arange(3), iter(range(3))):
        assert Benchmark("clip-four", root, complete=False, class_subset=chosen).class_subset == (0, 1, 2)


def test_shards_of_another_set_serve_a_list_only(root) -> None:  # noqa: F811
    """SSB-hard may be read from shards of ImageNet-21k, because the list identifies its images."""
    elsewhere = {"ssb_hard": root / "imagenet_ood"}
    with pytest.raises(DataError, match="ssb_hard: could not find 6 of 6 listed images"):
        Benchmark("openood-v1.5", root, sets=["ssb_hard"], locations=elsewhere)
    with pytest.raises(DataError, match="expected shards of 'ssb_hard', got shards of 'imagenet_ood'"):
        ImageNetBenchmark(root, sets=["ssb_hard"], locations=elsewhere, complete=False)


def test_descriptions_with_wrong_means() -> None:
    with pytest.raises(UnknownNameError, match="unknown set 'suns' of 'mine'; did you mean 'sun'"):
        BenchmarkDescription("mine", "Mine", (BenchmarkSet("sun"),), aggregates={"far": ("suns",)})
