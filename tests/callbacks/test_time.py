"""Where the time of a run goes: parts that sum to the whole, in the record, over processes and over starts."""

import io
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from PIL import Image
from torchvision.transforms import Compose, Normalize, ToTensor

from oodlit import Role
from oodlit.datamodules.batches import StreamBatches
from oodlit.datamodules.decode import decode_image
from oodlit.datamodules.loader import StreamLoader
from oodlit.datamodules.sources import MemorySource
from oodlit.datamodules.stream import Sample, Stream
from oodlit.detectors import KNN, MSP, Detector, Mahalanobis, Reference
from oodlit.report.sections.images.time import time_view
from oodlit.results.record_parts import TimeRecord
from oodlit.runs.time_record import ms_per_image, time_record
from oodlit.scoring.clock import OTHER, PARTS, WAITING, Clock, Span, latest
from oodlit.scoring.costs import Costs, longer_than_backbone, since
from tests.callbacks.support import make_module, make_streams, run

PAUSE = 0.03


class Slow(Detector):
    """MSP, by far too slow."""

    needs = frozenset({"logits"})
    calls = 0
    reference = Reference("Slow", "Nobody", "Nowhere", 2026, "https://example.org", "")

    def _fit(self, statistics, head):
        pass

    def _score(self, outputs):
        type(self).calls += 1
        time.sleep(PAUSE)
        return outputs.require("logits").amax(dim=1)


@given(st.lists(st.tuples(st.sampled_from(PARTS), st.integers(0, 9)), max_size=30))
def test_parts_sum_to_the_whole_and_to_the_images(steps):
    start = time.perf_counter()
    clock = Clock()
    for part, images in steps:
        clock.enter(part, images=images)
    clock.enter(OTHER)
    spans = clock.spans()
    assert sum(span.images for span in spans) == sum(images for _, images in steps)
    assert all(span.seconds >= 0 for span in spans)
    assert sum(span.seconds for span in spans) <= time.perf_counter() - start
    again = Clock()
    again.restore(clock.state())
    again.enter(OTHER)
    both, first = time_record([again.state()]), time_record([clock.state()])
    assert both.mean["total"] >= first.mean["total"]


def test_the_record_of_a_run_explains_the_time():
    Slow.calls, start = 0, time.perf_counter()
    results = run([MSP(), Slow(), Mahalanobis()]).results
    whole, record = time.perf_counter() - start, results.run.time
    mean = record.mean
    assert record.max == mean  # one process
    parts = {name: seconds for name, seconds in mean.items() if name != "total"}
    assert sum(parts.values()) == pytest.approx(mean["total"], abs=0.01)
    assert 0.5 * whole < mean["total"] <= whole
    assert {"preparation", WAITING, "backbone", "statistics", "fit", "scores", "metrics", OTHER} <= set(parts)
    assert set(record.fit) == {"msp", "slow", "mahalanobis"}
    scored = sum(results.run.counts.values())
    assert results.run.ms_per_image["slow"] >= 1000 * PAUSE * Slow.calls / scored
    assert record.reading.keys() <= {"read", "decode", "transform"}
    shown = time_view(results)
    assert max(results.run.ms_per_image, key=results.run.ms_per_image.__getitem__) == "slow"
    assert sum(row["share"] for row in shown["parts"]) == pytest.approx(100, abs=1)


def test_results_without_times_have_no_such_section():
    results = run([MSP()], streams=make_streams(with_train=False)).results
    untimed = structs.replace(results.run, time=TimeRecord())
    assert time_view(results.with_record(untimed)) is None


@pytest.mark.parametrize("workers", [0, 1])
def test_readers_measure_what_they_do(workers):
    samples = [Sample(str(i), b"image", label=0) for i in range(6)]
    stream = Stream("val", Role.ID, MemorySource(samples))
    loader = StreamLoader(stream, _slow_transform, decode=_slow_decode, batch_size=4, num_workers=workers)
    batches = [batch["seconds"] for batch in loader]
    assert [set(seconds) for seconds in batches] == [{"read", "decode", "transform"}] * 2
    for seconds, images in zip(batches, (4, 2), strict=True):
        assert 0.002 * images <= seconds["decode"]
        assert 0.001 * images <= seconds["transform"]


def _slow_decode(data: bytes):
    time.sleep(0.002)
    return Image.new("RGB", (2, 2))


def _slow_transform(image):
    time.sleep(0.001)
    return torch.zeros(3, 2, 2)


@pytest.mark.slow  # it is timed
def test_measuring_takes_less_than_a_hundredth_of_a_cheap_pipeline():
    """Three pairs of looks at the clock a sample, against a JPEG of 64 pixels as a tensor in [-1, 1]."""
    file = io.BytesIO()
    Image.new("RGB", (64, 64), (9, 99, 199)).save(file, "JPEG")
    transform = Compose([ToTensor(), Normalize([0.5] * 3, [0.5] * 3)])
    batches = StreamBatches(
        Stream("val", Role.ID, MemorySource([Sample("0", b"")])), None, 1, "raise", decode_image, 0, 1
    )
    took = getattr(StreamBatches._took, "__wrapped__", StreamBatches._took)  # without the type checks of the tests

    def best_of(work) -> float:
        found = []
        for _ in range(20):
            start = time.process_time()
            for _ in range(50):
                work()
            found.append(time.process_time() - start)
        return min(found)

    def measure() -> None:
        for what in ("read", "decode", "transform"):
            took(batches, what, time.perf_counter())

    assert best_of(measure) < 0.01 * best_of(lambda: transform(Image.open(file).convert("RGB")))


@pytest.mark.parametrize(("processes", "whose"), [(1, ""), (4, " of each process")])
def test_detectors_slower_than_the_backbone_are_announced_once_with_what_they_add(processes, whose):
    clock = Clock()
    clock._sums = {("backbone", ""): (50.0, 100), ("scores", "knn"): (90.0, 100)}  # the first batch is no measure
    costs, said = Costs(clock), []
    costs.expect([9000 * processes, 1000 * processes], processes)
    for batch in range(1, 6):
        clock._sums = {
            ("backbone", ""): (50.0 + batch, 100 * batch),
            ("scores", "knn"): (90.0 + 3 * batch, 100 * batch),
            ("scores", "msp"): (0.1 * batch, 100 * batch),
        }
        costs.count(100, 100)
        said.append(costs.text())
    text = "slower than the backbone (10 ms/image): knn 30 ms/image; this adds about 4.8 min for the"
    assert said == ["", "", f"{text} remaining 9,700 images{whose}", "", ""]


def test_what_adds_little_is_not_announced():
    spans = [Span("backbone", "", 0.1, 100), Span("scores", "knn", 0.2, 100)]
    assert longer_than_backbone(spans, 4000) == ""
    assert "knn 2 ms" in longer_than_backbone(spans, 6000)
    assert since(spans, spans) == [Span("backbone", "", 0.0, 0), Span("scores", "knn", 0.0, 0)]


def test_a_run_says_what_it_measured(monkeypatch):
    monkeypatch.setattr("oodlit.scoring.costs.LEAST_SECONDS", 0.01)
    detection = run([MSP(), Slow()], streams=make_streams(with_train=False), module=make_module(), batch_size=4)
    assert "slow" in detection.cost
    assert "remaining 68 images" in detection.cost


def test_a_run_that_resumes_adds_its_times_up(tmp_path):
    killed = {"spans": [("backbone", "", 7.0, 10), ("scores", "msp", 1.0, 10)], "reading": {"read": 1.0}}
    earlier = {"spans": [("backbone", "", 3.0, 4)], "reading": {}}
    assert latest([killed, earlier]) is killed
    assert latest([]) is None
    clock = Clock()
    clock.restore(killed)
    clock.enter("backbone", images=10)
    clock.enter(OTHER)
    state = clock.state()
    assert time_record([state]).mean["backbone"] >= 7.0
    assert time_record([state]).backbone_ms == pytest.approx(1000 * 7 / 20, rel=0.01)
    assert ms_per_image([state]) == {"msp": 100.0}


def test_scores_are_those_of_a_run_that_is_not_watched(monkeypatch):
    kinds = lambda: [MSP(), KNN(k=3), Mahalanobis()]  # noqa: E731
    watched = run(kinds()).results
    monkeypatch.setattr(Clock, "enter", lambda *_, **__: None)
    unwatched = run(kinds()).results
    for name in watched.detectors:
        assert watched.scores[name].tolist() == unwatched.scores[name].tolist()
