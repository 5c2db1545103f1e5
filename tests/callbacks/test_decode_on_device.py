"""Runs whose device decodes JPEGs: the same results, stated deviations, and refusals before anything counts."""

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision import transforms as v1

from oodlit import OODModule, Results
from oodlit.callbacks import OODDetection
from oodlit.configuration import make, plan
from oodlit.datamodules import MemorySource, OODDataModule, Sample, Stream
from oodlit.datamodules.decode import decode_image
from oodlit.datamodules.device import jpegs
from oodlit.detectors import MSP, ODIN, Energy, Mahalanobis
from oodlit.errors import DataError, InvalidArgumentError, RequirementError
from oodlit.results.record_parts import AccelerationRecord
from oodlit.roles import Role
from oodlit.runs.journal import _acceleration_of
from tests.callbacks.support import make_module, make_trainer

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*undefined .NaN."),  # the network knows none of the photos
    pytest.mark.filterwarnings("ignore:the classifier has an accuracy"),
    pytest.mark.filterwarnings("ignore:skipped images"),
    pytest.mark.filterwarnings("ignore:.*worker processes in total"),
]
TRANSFORM = v1.Compose([v1.Resize(10), v1.CenterCrop(8), v1.ToTensor(), v1.Normalize((0.5,) * 3, (0.25,) * 3)])

CROPPED = v1.Compose(TRANSFORM.transforms[1:])
"""Without resizing, the CPU gives the same pixels as the workers."""


def photo(seed: int, format: str = "JPEG", **options) -> bytes:
    """Smooth colours, so that chroma matters; a third of them grey."""
    rng = np.random.default_rng(seed)
    shape = (5, 4) if seed % 3 == 0 else (5, 4, 3)
    image = Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).resize((24 + seed % 5, 20))
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def make_data(*, formats=("JPEG", "JPEG", "JPEG"), broken: bool = True, **options) -> OODDataModule:
    streams = []
    for (name, role, count), format in zip(
        (("train", Role.TRAIN, 60), ("val", Role.ID, 12), ("far", Role.OOD, 13)), formats, strict=True
    ):
        samples = []
        for i in range(count):
            content = photo(1000 * len(name) + i, format)
            if broken and i % 6 == 4:  # another format, and one that is cut off
                content = photo(i, "PNG") if i % 12 == 4 else content[:-30]
            samples.append(Sample(f"{i:02d}", content, i % 6 if role is not Role.OOD else -1))
        streams.append(Stream(name, role, MemorySource(samples)))
    return OODDataModule(streams, batch_size=5, **{"transform": TRANSFORM, "on_error": "skip", **options})


def run(data: OODDataModule, detectors=None, *, trainer=None, **options) -> Results:
    detection = OODDetection(detectors or [MSP(), Energy(), Mahalanobis()], **options)
    predict = make_trainer(detection, **(trainer or {})).predict
    predict(make_module(), data, return_predictions=False)
    assert detection.results is not None
    return detection.results


def without_chroma_interpolation(file: Tensor) -> Tensor:
    """A decoder like that of GPUs: chroma is one value for 2 x 2 pixels."""
    image = Image.fromarray(np.asarray(decode_image(file.numpy().tobytes()))).convert("YCbCr")
    light, *chroma = image.split()
    blocks = [c.resize(((c.width + 1) // 2, (c.height + 1) // 2), Image.Resampling.BOX) for c in chroma]
    chroma = [b.resize(image.size, Image.Resampling.NEAREST) for b in blocks]
    made = Image.merge("YCbCr", [light, *chroma]).convert("RGB")
    return torch.from_numpy(np.asarray(made).copy()).permute(2, 0, 1)


@pytest.fixture
def like_a_gpu(monkeypatch):
    monkeypatch.setattr(jpegs, "_decoded", lambda files, device: [without_chroma_interpolation(f) for f in files])


@pytest.mark.parametrize("workers", [0, 2])
def test_results_are_those_of_workers(workers):
    on_device, exact = run(make_data(decode_on_device=True, num_workers=workers)), run(make_data())
    assert workers or on_device.scores["key"].tolist() == exact.scores["key"].tolist()
    rows, like = (results.scores.sort_values(["dataset", "key"]) for results in (on_device, exact))
    for name in ("msp", "energy", "mahalanobis"):
        np.testing.assert_allclose(rows[name], like[name], atol=0.2 * np.std(like[name]))
    for name in ("key", "group", "label"):
        assert rows[name].tolist() == like[name].tolist()
    assert sorted(map(str, on_device.run.skipped)) == sorted(map(str, exact.run.skipped))
    assert len(exact.run.skipped) == 7
    record = on_device.run.acceleration
    assert record.decode_on_device is True
    assert record.deviation_of_pixels.largest <= 2  # of resizing: on a CPU the decoder is the same
    assert record.deviation_of_logits < 0.02
    assert set(record.deviation_of_scores) == {"msp", "energy", "mahalanobis"}
    assert exact.run.acceleration == AccelerationRecord()
    assert on_device.run.backbone.fingerprint == exact.run.backbone.fingerprint
    assert on_device.run.time.reading.keys() == {"read", "decode", "transform"}


@pytest.mark.usefixtures("like_a_gpu")
def test_what_a_decoder_changes_is_stated():
    record = run(make_data(broken=False, decode_on_device=True)).run.acceleration
    assert record.deviation_of_pixels.largest > 5
    assert 0 < record.deviation_of_pixels.mean < 5
    assert 0.001 < record.deviation_of_logits <= 0.1
    assert all(0 < value <= 0.5 for value in record.deviation_of_scores.values())


@pytest.mark.parametrize(
    ("formats", "checked"),
    [(("PNG", "PNG", "JPEG"), "far"), (("PNG", "JPEG", "PNG"), "val"), (("PNG", "PNG", "PNG"), None)],
)
@pytest.mark.usefixtures("like_a_gpu")
def test_the_first_batches_with_jpegs_are_compared_wherever_they_are(formats, checked):
    record = run(make_data(formats=formats, broken=False, decode_on_device=True)).run.acceleration
    assert (record.deviation_of_pixels is not None) is (checked is not None)
    assert (record.deviation_of_scores["energy"] > 1e-4) is (checked is not None)
    assert (record.deviation_of_logits > 1e-4) is (checked is not None)


def test_a_decoder_that_is_wrong_is_refused(monkeypatch):
    original = jpegs._decoded
    monkeypatch.setattr(jpegs, "_decoded", lambda files, device: [255 - i for i in original(files, device)])
    message = (
        r"^tiny with decode_on_device=True: on the first images, the logits deviate by .* from the plain network,"
        r" with images decoded by workers; at most 0\.1 is allowed\. Run without "
    )
    with pytest.raises(RequirementError, match=message):
        run(make_data(broken=False, decode_on_device=True))


def test_batches_of_one_image_are_compared_as_well(monkeypatch):
    data = make_data(decode_on_device=True, transform=CROPPED)
    record = run(data.with_loading(batch_size=1)).run.acceleration
    assert record.deviation_of_logits < 1e-5
    assert set(record.deviation_of_scores) == {"msp", "energy", "mahalanobis"}
    original = jpegs._decoded
    monkeypatch.setattr(jpegs, "_decoded", lambda files, device: [255 - i for i in original(files, device)])
    with pytest.raises(RequirementError, match="on the first images, the logits deviate"):
        run(make_data(broken=False, decode_on_device=True).with_loading(batch_size=1))


def test_it_goes_with_other_ways_to_be_faster():
    data = make_data(broken=False, decode_on_device=True)
    found = run(data, trainer={"precision": "bf16-mixed"}).run.acceleration
    assert (found.precision, found.decode_on_device) == ("bf16-mixed", True)
    assert found.deviation_of_pixels.largest <= 2
    assert 0 < found.deviation_of_logits <= 0.1


def test_detectors_that_ask_for_gradients_of_images():
    exact = run(make_data(broken=False), [ODIN()])
    on_device = run(make_data(broken=False, decode_on_device=True), [ODIN()])
    np.testing.assert_allclose(on_device.scores["odin"], exact.scores["odin"], rtol=0.05)


def own_step(image: Image.Image) -> Image.Image:
    return image


def test_an_unknown_step_is_refused_before_the_run(tmp_path):
    data = make_data(decode_on_device=True)
    data.transform = v1.Compose([own_step, *TRANSFORM.transforms])
    with pytest.raises(
        InvalidArgumentError, match=r"decode_on_device does not support .*<function own_step .* omit decode_on_device"
    ):
        run(data, output_dir=tmp_path / "out")
    assert not (tmp_path / "out" / "run.json").exists()


def start(out: Path, *, on_device: bool, kill: int) -> tuple[Results | None, int]:
    module, passes = make_module(), [0]
    original = module.predict_step

    def predict_step(*arguments, **named):
        passes[0] += 1
        if passes[0] == kill:
            raise DataError("killed")
        return original(*arguments, **named)

    module.predict_step = predict_step
    detection = OODDetection([MSP(), Mahalanobis()], output_dir=out, resume=True, keep_every_s=0)
    try:
        make_trainer(detection).predict(module, make_data(decode_on_device=on_device), return_predictions=False)
    except DataError as error:
        assert str(error) == "killed"  # noqa: PT017 - of a start that is killed
    return detection.results, passes[0]


def test_a_run_that_was_killed_resumes_as_the_same_run_alone(tmp_path):
    for out in (tmp_path / "one", tmp_path / "other"):
        assert start(out, on_device=True, kill=15)[0] is None
    results, passes = start(tmp_path / "one", on_device=True, kill=0)
    assert passes == 18 - 14
    assert results is not None
    assert results.run.resumed
    assert results.run.acceleration.deviation_of_pixels.largest <= 2
    whole = run(make_data(decode_on_device=True), [MSP(), Mahalanobis()])
    np.testing.assert_allclose(results.scores["msp"], whole.scores["msp"], rtol=1e-5)
    assert start(tmp_path / "other", on_device=False, kill=0)[1] == 18


@pytest.mark.parametrize("passes", [3, 15])
def test_a_run_that_resumes_has_what_its_earlier_start_found(monkeypatch, tmp_path, passes):
    """Here the decoder has become an exact one in between."""
    with monkeypatch.context() as patched:
        like = lambda files, device: [without_chroma_interpolation(f) for f in files]  # noqa: E731
        patched.setattr(jpegs, "_decoded", like)
        assert start(tmp_path, on_device=True, kill=passes)[0] is None
    results, _ = start(tmp_path, on_device=True, kill=0)
    assert results is not None
    assert results.run.resumed
    assert results.run.acceleration.deviation_of_pixels.largest > 5


def test_no_run_resumes_with_the_decoder_of_another_device():
    def key(device: str, **options) -> dict:
        strategy = SimpleNamespace(root_device=torch.device(device))
        trainer = SimpleNamespace(lightning_module=make_module(), strategy=strategy)
        return _acceleration_of(trainer, make_data(**options))

    assert key("cpu", decode_on_device=True) != key("cuda:0", decode_on_device=True)
    assert key("cuda:1", decode_on_device=True) == key("cuda:0", decode_on_device=True)
    assert key("cpu") == key("cuda:0") == {}


def test_configurations_name_it(tmp_path):
    for folder in ("val/cat", "val/dog", "far"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "0.jpg").write_bytes(photo(0))
    streams = [
        {"class_path": "folder_stream", "init_args": {"path": str(tmp_path / name), "role": role}}
        for name, role in (("val", "id"), ("far", "ood"))
    ]
    written = {"class_path": "OODDataModule", "init_args": {"streams": streams, "decode_on_device": True}}
    assert make(plan(written, OODDataModule, "--data")).decode_on_device is True


@pytest.mark.parametrize("other_pixels", [False, True])
def test_other_ways_to_be_faster_have_their_own_limits_where_pixels_are_the_same(monkeypatch, request, other_pixels):
    if other_pixels:
        request.getfixturevalue("like_a_gpu")
    original = OODModule.exact_outputs

    def off_by_a_little(self, batch):  # more than float32 may be, less than 16 bits
        outputs = original(self, batch)
        return replace(outputs, logits=outputs.logits + 0.03 * outputs.logits.std() * torch.randn(outputs.logits.shape))

    monkeypatch.setattr(OODModule, "exact_outputs", off_by_a_little)
    data = make_data(broken=False, decode_on_device=True)
    if other_pixels:
        assert run(data, [MSP()]).run.acceleration.deviation_of_logits > 0.01
        return
    data.transform = CROPPED
    with pytest.raises(RequirementError, match=r"at most 0\.01 is allowed|two forward passes on the same images"):
        run(data, [MSP()])
