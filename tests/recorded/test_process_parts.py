"""Any number of processes, interrupted at any batches, record every image once (without a network)."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oodlit import Role
from oodlit.datamodules.loader import StreamLoader
from oodlit.datamodules.sources import MemorySource
from oodlit.datamodules.stream import Sample, Stream
from oodlit.recorded.rows import Rows
from oodlit.runs.features import recording
from oodlit.runs.features.recording import Recording
from tests.recorded.support import rows_in

HOW = {"backbone": "none", "fingerprint": "weights=1", "dtype": "float32", "precision": "32-true", "decoder": "workers"}
FACTS = {"head_problem": "there is no network", "class_names": []}


def stream_of(name: str, role: Role, count: int, bad: frozenset[int]) -> Stream:
    samples = [
        Sample(f"é{i}", torch.full((1, 1, 1), float(i)), label=i % 3, error="broken" if i in bad else None)
        for i in range(count)
    ]
    return Stream(name, role, MemorySource(samples))


class OneAfterTheOther:
    """Processes that run one after the other, and receive earlier messages."""

    def __init__(self) -> None:
        self.found: object = None
        self.shares: list[list] = []

    def gather(self, _group: object, value: object) -> list:
        if isinstance(value, dict):  # what the first process has found
            self.found = value
        if isinstance(value, list):  # at the end the first process is the last one
            self.shares.append(value)
            return self.shares
        return [self.found if value is None else value]


def start(folder: Path, streams: Sequence[Stream], *, processes: int, batch_size: int, kill_at: Sequence[int]) -> int:
    """Start this many processes, each ending at its batch; returns the number of images that were read."""
    cut, taken, is_whole = {"processes": processes, "num_workers": 0, "batch_size": batch_size}, 0, True
    recordings = [Recording(folder, how=HOW, cut=cut, process=p, every_s=0.0) for p in range(processes)]
    for one in recordings:
        one.begin(streams, FACTS, None, None, can_resume=True)
    for one, last in zip(recordings, kill_at, strict=True):
        batches = 0
        for stream in (s for s in streams if s.name not in one.cached):
            done = one.own_parts[stream.name].batches if stream.name in one.own_parts else 0
            how = {"rank": one.process, "world_size": processes, "start": done, "on_error": "skip"}
            for batch in StreamLoader(stream, batch_size=batch_size, **how):
                if batches == last:
                    break
                keys = [key.partition("/")[2] for key in batch["key"]]
                values = batch["image"].flatten(1)
                rows = Rows(values, None, batch["label"], batch["group"], keys) if keys else None
                one.take(stream, rows, batch["skipped"])
                batches, taken = batches + 1, taken + len(keys)
        is_whole &= batches < last
    for one in reversed(recordings) if is_whole else ():
        one.finish(FACTS, None, {}, None)
    return taken


@given(
    sizes=st.lists(st.integers(1, 13), min_size=1, max_size=3),
    bad=st.frozensets(st.integers(1, 12), max_size=3),
    cuts=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=2),
    kills=st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), max_size=3),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_killed_anywhere_every_image_is_recorded_once(tmp_path_factory, sizes, bad, cuts, kills):
    """Cut over processes and into batches in one way, or in two by turns: then halves of streams are taken again."""
    folder = tmp_path_factory.mktemp("cache")
    roles = [Role.ID, *[Role.OOD] * (len(sizes) - 1)]
    streams = [stream_of(f"s{i}", role, n, bad) for i, (role, n) in enumerate(zip(roles, sizes, strict=True))]
    taken = 0
    for number, kill_at in enumerate([*kills, [1000] * 3]):
        processes, batch_size = cuts[number % len(cuts)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recording, "gather_objects", OneAfterTheOther().gather)
            how = {"processes": processes, "batch_size": batch_size, "kill_at": kill_at[:processes]}
            taken += start(folder, streams, **how)
    expected = {
        stream.name: {s.key: (s.image.numpy().tobytes(), s.label, -1) for s in stream.source.samples if s.error is None}
        for stream in streams
    }
    assert rows_in(folder) == expected
    assert taken >= sum(map(len, expected.values()))
    if len(set(cuts)) == 1:
        assert taken == sum(map(len, expected.values()))
