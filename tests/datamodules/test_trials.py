"""Trials use images spread over each set, the same ones for any number of workers and processes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oodlit.datamodules import ImageNetBenchmark, MemorySource, OODDataModule, Sample, Stream, shard_stream
from oodlit.datamodules.classes import AlignedSource
from oodlit.datamodules.loader import StreamLoader
from oodlit.datamodules.loading_options import LoadingOptions
from oodlit.datamodules.shards import ShardSource
from oodlit.datamodules.sources import DatasetSource, FileSource
from oodlit.datamodules.stream import pick_samples
from oodlit.datamodules.thinning import ThinnedSource, known_classes, spread, spread_over_classes, thinned
from oodlit.errors import DataError, InvalidArgumentError
from oodlit.roles import Role
from tests.tiny_shards import write_tiny_shards

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*worker processes in total"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
]


def zeros(_: object) -> torch.Tensor:
    return torch.zeros(3, 2, 2)


@given(st.integers(0, 3000), st.integers(1, 400))
def test_positions_are_distinct_ascending_and_spread(total: int, count: int) -> None:
    positions = spread(total, count)
    assert len(positions) == min(total, count)
    assert positions == sorted(set(positions))
    for part, position in enumerate(positions):
        assert part * total // len(positions) <= position < (part + 1) * total // len(positions)


@given(st.lists(st.integers(-1, 9), min_size=1, max_size=120), st.integers(1, 60))
def test_every_class_has_an_image_where_possible(classes: list[int], count: int) -> None:
    positions = spread_over_classes(classes, count)
    assert len(positions) == min(len(classes), count)
    assert positions == sorted(set(positions))
    present = set(classes) - {-1}
    chosen = {classes[position] for position in spread(len(classes), count)} - {-1}
    found = {classes[position] for position in positions} - {-1}
    assert found == (present if len(present) <= count else chosen)
    if chosen == present:
        assert positions == spread(len(classes), count)


@pytest.mark.parametrize("by_label", [True, False])
def test_every_source_that_knows_classes_keeps_all_of_them(tmp_path: Path, by_label: bool) -> None:
    sizes = [1, 40, 1, 40, 1]
    classes = [number for number, size in enumerate(sizes) for _ in range(size)]
    codes: Any = {"labels" if by_label else "groups": classes}
    paths = [tmp_path / f"{position:03d}.png" for position in range(len(classes))]
    samples = [Sample(path.name, b"", **{k[:-1]: v[i] for k, v in codes.items()}) for i, path in enumerate(paths)]
    role, field = (Role.ID, "label") if by_label else (Role.OOD, "group")
    write_tiny_shards(tmp_path / "shards", sizes, num_classes=5, role=role)
    for path in paths:
        path.write_bytes(b"")
    sources: list[Any] = [MemorySource(samples), FileSource(paths, **codes), ShardSource(tmp_path / "shards")]
    sources += [AlignedSource(source, range(5)) for source in sources]
    if not by_label:
        sources.append(DatasetSource(paths, groups=classes))
    for source in sources:
        whole = Stream("some", role, source, tuple("abcde"))
        stream, known = thinned(whole, 8), known_classes(whole)
        assert known is not None
        assert isinstance(stream.source, ThinnedSource)
        assert len(stream) == 8
        assert {known[position] for position in stream.source.positions} == set(range(5))
        if not isinstance(source, DatasetSource):
            assert known_classes(stream) == [known[position] for position in stream.source.positions]
            assert [getattr(sample, field) for sample in source.read(0, len(source))] == list(known)


def test_damaged_shards_are_thinned_without_their_classes(tmp_path: Path) -> None:
    write_tiny_shards(tmp_path, [40, 1], num_classes=2)
    stream = shard_stream(tmp_path, damaged="mark")
    (tmp_path / "tiny-000001.tar").write_bytes(b"damaged")
    source = thinned(stream, 3).source
    assert isinstance(source, ThinnedSource)
    assert source.positions == spread(41, 3)


@pytest.mark.parametrize("period", range(2, 12))
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_periodic_data_hides_no_class(period: int, steps: int) -> None:
    positions = spread(period * steps * 100, 100)
    assert {position % period for position in positions} == set(range(period))


def test_sets_in_class_order_keep_all_classes(tmp_path: Path) -> None:
    write_tiny_shards(tmp_path / "far", [40, 40, 40], num_classes=3)
    samples = [Sample(f"{i:03d}", torch.zeros(3, 2, 2), label=i // 100) for i in range(700)]
    val = Stream("val", Role.ID, MemorySource(samples), tuple("abcdefg"))
    whole = OODDataModule([val, shard_stream(tmp_path / "far", name="far")], transform=zeros, batch_size=8)
    for data in (whole.with_loading(max_images=21), OODDataModule(whole.streams, transform=zeros, max_images=21)):
        assert [len(stream) for stream in data.streams] == [21, 21]
        assert data.class_names == whole.class_names
        val_batches, far_batches = map(list, data.predict_dataloader())
        assert torch.cat([batch["label"] for batch in val_batches]).bincount().tolist() == [3] * 7
        assert set(torch.cat([batch["group"] for batch in far_batches]).tolist()) == {0, 1, 2}
    assert [len(stream) for stream in whole.streams] == [700, 120]
    assert [len(stream) for stream in whole.with_loading(batch_size=4).streams] == [700, 120]


@pytest.mark.parametrize(("workers", "world_size"), [(0, 1), (2, 1), (3, 2), (0, 5)])
def test_same_images_for_any_number_of_workers_and_processes(tmp_path: Path, workers: int, world_size: int) -> None:
    keys = write_tiny_shards(tmp_path, [7, 0, 20, 13], role=Role.ID)
    stream = thinned(shard_stream(tmp_path), 17)
    found: list[str] = []
    for rank in range(world_size):
        options: Any = {"num_workers": workers, "rank": rank, "world_size": world_size, "batch_size": 4}
        loader = StreamLoader(stream, zeros, **options)
        batches = [batch["key"] for batch in loader]
        assert len(batches) == len(loader)
        found += [key for batch in batches for key in batch]
    assert sorted(found) == sorted(f"tiny/{keys[position]}" for position in spread(40, 17))


@given(st.data())
def test_pick_returns_the_same_samples_as_read(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("shards")
    lengths = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any))
    write_tiny_shards(folder, lengths)
    source = ShardSource(folder)
    positions = sorted(data.draw(st.sets(st.integers(0, len(source) - 1))))
    everything = [(sample.key, sample.image) for sample in source.read(0, len(source))]
    assert [(s.key, s.image) for s in pick_samples(source, positions)] == [everything[i] for i in positions]
    plain = MemorySource(list(source.read(0, len(source))))
    assert [s.key for s in pick_samples(plain, positions)] == [everything[i][0] for i in positions]


def test_thinning_twice_and_finding_keys() -> None:
    source = ThinnedSource(MemorySource([Sample(str(i), torch.zeros(3, 1, 1)) for i in range(100)]), 10)
    again = ThinnedSource(source, 4)
    assert len(again) == 4
    assert [sample.key for sample in again.read(0, 9)] == [str(source.positions[i]) for i in again.positions]
    assert [sample.key for sample in again.find({"5"})] == ["5"]
    with pytest.raises(DataError, match=r"keys .* not found"):
        list(again.find({"no"}))


def test_a_damaged_shard_loses_only_the_picked_samples(tmp_path: Path) -> None:
    write_tiny_shards(tmp_path, [4, 4], role=Role.ID)
    path = tmp_path / "tiny-000001.tar"
    source = ShardSource(tmp_path, damaged="mark")
    path.write_bytes(path.read_bytes()[:700])
    samples = list(source.pick([1, 5, 7]))
    assert [sample.error is None for sample in samples] == [True, False, False]
    assert [sample.key for sample in samples[1:]] == ["tiny-000001.tar#1", "tiny-000001.tar#3"]


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_invalid_max_images_are_refused(count: Any) -> None:
    val = Stream("val", Role.ID, MemorySource([Sample("0", torch.zeros(3, 1, 1))]))
    with pytest.raises((InvalidArgumentError, TypeError), match="max_images"):
        OODDataModule([val], max_images=count)


def test_the_benchmark_has_the_options_of_its_base() -> None:
    import inspect

    # without options for object detectors and unit tests, which are one of the benchmark's sets
    base = inspect.signature(OODDataModule.__init__).parameters.keys() - {"self", "streams", "any_size", "unit_tests"}
    assert base == LoadingOptions.__annotations__.keys()
    assert inspect.signature(ImageNetBenchmark.__init__).parameters["loading"].kind is inspect.Parameter.VAR_KEYWORD
