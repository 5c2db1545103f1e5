"""What only a CUDA device can show; run with `pytest -m gpu`."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from oodlit.base.checks import deferred_checks
from oodlit.datamodules import MemorySource, Sample, Stream, StreamLoader
from oodlit.datamodules.decode import MAX_PIXELS
from oodlit.datamodules.device import jpegs
from oodlit.datamodules.device.jpegs import jpeg_for_device
from oodlit.detectors import Detector, detectors, fit
from oodlit.detectors.contract.placement import place_large
from oodlit.outputs import Outputs
from oodlit.roles import Role
from oodlit.testing.problems import separated_problem
from tests.callbacks.support import make_module, make_streams, make_trainer, run
from tests.detectors.support import NEGATIVE_WORDS

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
SMALL = {"knn": {"k": 5}, "nn_guide": {"k": 5}} | dict.fromkeys(("neg_label", "csp"), NEGATIVE_WORDS)


def without_arguments() -> dict[str, type[Detector]]:
    """Detectors whose constructor needs nothing that a test would have to invent."""
    made = {}
    for name, kind in detectors().items():
        try:
            kind(**SMALL.get(name, {}))
        except TypeError:
            continue
        made[name] = kind
    return made


def test_every_detector_scores_on_the_gpu_as_on_the_cpu():
    problem = separated_problem()
    kinds = without_arguments()
    assert len(kinds) >= 20
    for name, kind in kinds.items():
        on_cpu, on_gpu = (kind(**SMALL.get(name, {})) for _ in range(2))
        if not set(on_cpu.required_needs) <= {"logits", "features", "head", "labels"}:
            continue
        fit([on_cpu], [problem.train], problem.head)
        fit([on_gpu], [problem.train.to("cuda")], problem.head.to("cuda"))
        on_gpu.to("cuda")
        got = on_gpu.score(problem.tests.to("cuda"))
        assert got.device.type == "cuda", name
        np.testing.assert_allclose(got.cpu(), on_cpu.score(problem.tests), rtol=2e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_a_run_on_the_gpu_gives_the_table_of_the_cpu(precision):
    kinds = [detectors()[n](**SMALL.get(n, {})) for n in ("msp", "energy", "mahalanobis", "vim", "knn")]
    on_cpu = run(kinds, streams=make_streams(), module=make_module()).results
    on_gpu = run(
        [type(k)(**k.settings) for k in kinds],
        streams=make_streams(),
        module=make_module(),
        trainer={"accelerator": "gpu", "devices": 1, "precision": precision},
    ).results
    assert on_cpu.scores["key"].tolist() == on_gpu.scores["key"].tolist()
    tolerance = 1e-3 if precision == "32-true" else 0.1
    np.testing.assert_allclose(on_gpu.scores["energy"], on_cpu.scores["energy"], rtol=tolerance, atol=tolerance)
    if precision == "32-true":
        np.testing.assert_allclose(on_gpu.table["value"], on_cpu.table["value"], atol=0.05)


def test_no_detector_waits_for_the_gpu():
    problem, swept = separated_problem(), 0
    for name, kind in without_arguments().items():
        detector = kind(**SMALL.get(name, {}))
        if not detector.required_needs <= {"logits", "features", "head", "labels"}:
            continue
        fit([detector], [problem.train.to("cuda")], problem.head.to("cuda"))
        place_large({name: detector}, torch.device("cuda", torch.cuda.current_device()))
        tests = problem.tests.to("cuda")
        detector.score(tests)  # moves what lies elsewhere
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            with torch.inference_mode(), deferred_checks():
                detector.score(Outputs(tests.logits, tests.features))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        swept += 1
    assert swept >= 30


def banks() -> tuple[Outputs, dict[str, Detector]]:
    """Training images, and fitted detectors that compare with them; two of them share a bank."""
    kinds = detectors()
    generator = torch.Generator().manual_seed(0)
    train = torch.randn(4000, 64, generator=generator)
    outputs = Outputs(train[:, :6].contiguous(), train, hidden={"feature_map": train[:, :, None, None]})
    made = {
        "knn": kinds["knn"](k=5),
        "far": kinds["knn"](k=50),
        "nn_guide": kinds["nn_guide"](k=5),
        "lard": kinds["lard"](density="knn", k=5),
    }
    fit([*made.values()], [outputs])
    return outputs.select(slice(0, 300)), made


def test_banks_on_the_gpu_give_the_scores_of_banks_on_the_cpu():
    queries, made = banks()
    queries = replace(
        queries, features=queries.features + 0.5, hidden={"feature_map": queries.hidden["feature_map"] + 1}
    )
    device = torch.device("cuda", torch.cuda.current_device())
    moved = {name: detector.score(queries.to(device)).cpu() for name, detector in made.items()}
    assert all(detector.bank.device.type == "cpu" for detector in made.values())
    before = torch.cuda.memory_allocated()
    assert "on cuda" in place_large(made, device)
    assert made["knn"].bank.data_ptr() == made["far"].bank.data_ptr()
    alone = sum(made[name].bank.nbytes for name in ("knn", "nn_guide", "lard"))
    assert alone <= torch.cuda.memory_allocated() - before <= 1.1 * alone + 2**16
    for name, detector in made.items():
        there = detector.score(queries.to(device)).cpu()
        assert detector.bank.device == device, name
        np.testing.assert_allclose(there, moved[name], rtol=1e-6, atol=1e-6, err_msg=name)


def test_no_search_waits_for_the_gpu_once_its_bank_is_there():
    queries, made = banks()
    device = torch.device("cuda", torch.cuda.current_device())
    place_large(made, device)
    queries = queries.to(device)
    for detector in made.values():
        detector.score(queries)  # moves what else there is
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.inference_mode(), deferred_checks() as granted:
            scores = [detector.score(replace(queries)) for detector in made.values()]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert granted
    assert all(value.isfinite().all() for value in scores)


def test_a_bank_without_room_stays_on_the_cpu():
    queries, made = banks()
    device = torch.device("cuda", torch.cuda.current_device())
    assert ": on the CPU, moved to" in place_large(made, device, room=100_000)
    assert made["knn"].bank.device.type == "cpu"
    assert made["knn"].score(queries.to(device)).device == device


def test_a_run_on_the_gpu_says_where_its_bank_is():
    trainer = {"accelerator": "gpu", "devices": 1}
    kinds = [detectors()["knn"](k=5), detectors()["nn_guide"](k=5)]
    results = run(kinds, streams=make_streams(), module=make_module(), trainer=trainer).results
    assert results.run.bank.startswith("on cuda:0 lie rows of ")
    assert all(kind.bank.device.type == "cuda" for kind in kinds)


@pytest.mark.parametrize("options", [{"channels_last": True}, {"compile": True}])
def test_faster_networks_are_verified_on_the_gpu(options):
    from oodlit import OODModule
    from oodlit.testing.backbones import TinyConvNet

    kinds = [detectors()[name]() for name in ("msp", "mahalanobis")]
    trainer = {"accelerator": "gpu", "devices": 1, "precision": "bf16-mixed"}
    module = OODModule(TinyConvNet(6, dropout=0.2), name="tiny", **options)
    record = run(kinds, streams=make_streams(), module=module, trainer=trainer).results.run.acceleration
    assert record.deviation_of_logits <= 0.1
    assert set(record.deviation_of_scores) == {"msp", "mahalanobis"}


def photos() -> list[Stream]:
    """JPEGs of several kinds and sizes, with other formats and broken files among them."""
    made = []
    for name, role, count in (("val", Role.ID, 40), ("far", Role.OOD, 30)):
        samples = []
        for i in range(count):
            rng = np.random.default_rng([len(name), i])
            image = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)).resize((200 + i, 150))
            file = io.BytesIO()
            options = {"progressive": i % 3 == 0, "subsampling": i % 2 * 2, "quality": 90}
            image.convert("L" if i % 7 == 0 else "RGB").save(file, "PNG" if i % 5 == 0 else "JPEG", **options)
            content = file.getvalue()
            samples.append(Sample(f"{i:02d}", content[:-200] if i % 11 == 1 else content, i % 6))
        made.append(Stream(name, role, MemorySource(samples)))
    return made


TRANSFORM = transforms.Compose(
    [transforms.Resize(36), transforms.CenterCrop(32), transforms.ToTensor(), transforms.Normalize((0.5,), (0.25,))]
)


@pytest.mark.parametrize("workers", [0, 2])
def test_jpegs_decoded_on_the_gpu_are_those_of_the_workers_but_for_their_chroma(workers):
    for stream in photos():
        how = {"batch_size": 16, "num_workers": workers, "on_error": "skip"}
        exact = list(StreamLoader(stream, TRANSFORM, **how))
        made = list(StreamLoader(stream, TRANSFORM, decode_on="cuda:0", **how))
        for batch, like in zip(made, exact, strict=True):
            assert (batch["key"], batch["skipped"]) == (like["key"], like["skipped"])
            assert batch["image"].device.type == "cuda"
            reading = batch["exact"]
            assert torch.equal(reading.images(batch["image"]).cpu(), like["image"])
            largest, mean = reading.deviation(batch["image"], like["image"])
            assert largest < 60
            assert mean < 2


@pytest.mark.filterwarnings("ignore")
def test_a_run_whose_jpegs_the_gpu_decodes_says_how_far_it_is():
    from oodlit.callbacks import OODDetection
    from oodlit.datamodules import OODDataModule

    small = transforms.Compose([transforms.Resize(10), transforms.CenterCrop(8), *TRANSFORM.transforms[2:]])
    results = []
    for on_device in (False, True):
        detection = OODDetection([detectors()["energy"]()])
        data = OODDataModule(
            photos(), transform=small, batch_size=16, num_workers=2, on_error="skip", decode_on_device=on_device
        )
        trainer = make_trainer(detection, accelerator="gpu", devices=1)
        trainer.predict(make_module(), data, return_predictions=False)
        results.append(detection.results)
    exact, made = results
    assert sorted(made.scores["key"]) == sorted(exact.scores["key"])
    record = made.run.acceleration
    assert 0 <= record.deviation_of_pixels.mean < 2
    assert record.deviation_of_logits <= 0.1


def test_batches_in_a_row_do_not_write_over_each_other_on_the_gpu():
    """The decoder writes from a queue of its own; what was decoded before may still be read in others."""
    stream = Stream("many", Role.OOD, MemorySource([replace(s, key=f"{n}{s.key}") for n in range(8) for s in files()]))
    weights = torch.randn(2048, 2048, device="cuda")
    batches = StreamLoader(stream, TRANSFORM, batch_size=len(files()), decode_on="cuda:0")
    sums = []
    for batch in batches:
        busy = weights
        for _ in range(20):
            busy = busy @ weights / 2048
        sums.append(batch["image"].double().sum((1, 2, 3)) + 0 * busy[0, 0])
    assert all(torch.equal(one, sums[0]) for one in sums)


def test_parts_of_a_batch_do_not_write_over_each_other_on_the_gpu(monkeypatch):
    """Kernels that resize a part read from memory that the next part is decoded into, unless they are waited for."""
    stream = Stream("many", Role.OOD, MemorySource([replace(s, key=f"{n}{s.key}") for n in range(8) for s in files()]))

    def images() -> torch.Tensor:
        (batch,) = StreamLoader(stream, TRANSFORM, batch_size=len(stream), decode_on="cuda:0")
        return batch["image"].cpu()

    whole = images()
    for most in (1, 10**6):
        monkeypatch.setattr(jpegs, "_MOST_BYTES", most)
        assert torch.equal(images(), whole)


def test_a_batch_of_which_no_file_can_be_used_is_on_the_gpu(monkeypatch):
    monkeypatch.setattr("oodlit.datamodules.batches.jpeg_for_device", lambda data, _: jpegs.Jpeg(data, 8, 8))
    stream = Stream("none", Role.OOD, MemorySource([Sample("0", b"?"), Sample("1", b"?")]))
    for batch in StreamLoader(stream, TRANSFORM, batch_size=1, decode_on="cuda:0", on_error="skip"):
        assert batch["image"].shape == (0, 3, 32, 32)
        assert batch["image"].device.type == "cuda"


def files() -> list[Sample]:
    return [s for s in photos()[0].source.read(0, 40) if jpeg_for_device(s.image, MAX_PIXELS) is not None]


def test_the_time_of_a_run_on_the_gpu_is_explained():
    kinds = [detectors()[n](**SMALL.get(n, {})) for n in ("msp", "mahalanobis", "knn")]
    results = run(
        kinds, streams=make_streams(), module=make_module(), trainer={"accelerator": "gpu", "devices": 1}
    ).results
    mean = results.run.time.mean
    assert sum(v for name, v in mean.items() if name != "total") == pytest.approx(mean["total"], rel=0.01, abs=0.01)
    assert {"backbone", "statistics", "fit", "scores"} <= mean.keys()
    assert all(value > 0 for value in results.run.ms_per_image.values())
