"""What was recorded or scored is used again for the same images, decoded in the same way, and for no others."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from oodlit import Results, Role
from oodlit.callbacks import OODDetection
from oodlit.datamodules import FileSource, OODDataModule, Stream, decode_image
from oodlit.detectors import MSP
from oodlit.errors import FingerprintError, RunIsCompleteError
from oodlit.recorded import FeatureCache, open_cache
from tests.callbacks.support import make_module, make_streams, make_trainer
from tests.recorded.support import record

pytestmark = pytest.mark.filterwarnings("ignore::oodlit.results.finding.FindingWarning")


def to_tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image.resize((8, 8)), dtype=np.float32) / 255).permute(2, 0, 1)


def streams_of(folder: Path, *, seed: int) -> list[Stream]:
    """An ID and an OOD set of files whose names do not depend on the seed."""
    streams = []
    for name, role in (("val", Role.ID), ("fog", Role.OOD)):
        own = folder / str(seed) / name
        own.mkdir(parents=True, exist_ok=True)
        values = np.random.default_rng([seed, len(streams)]).integers(256, size=(12, 16, 16, 3), dtype=np.uint8)
        for place, pixels in enumerate(values):
            Image.fromarray(pixels).save(own / f"{place}.png")
        source = FileSource(
            sorted(own.iterdir()), labels=[place % 6 for place in range(12)] if role is Role.ID else None
        )
        streams.append(Stream(name, role, source))
    return streams


def evaluate(out: Path, streams: list[Stream], **options) -> Results:
    detection = OODDetection([MSP()], output_dir=out, num_thumbnails=0, resume=True)
    data = OODDataModule(streams, transform=to_tensor, **options)
    make_trainer(detection).predict(make_module(), data, return_predictions=False)
    return detection.results


def test_a_finished_run_is_not_that_of_other_files_of_the_same_names(tmp_path):
    one = evaluate(tmp_path / "out", streams_of(tmp_path, seed=1))
    with pytest.raises(RunIsCompleteError):
        evaluate(tmp_path / "out", streams_of(tmp_path, seed=1))
    five = evaluate(tmp_path / "out", streams_of(tmp_path, seed=5))
    assert not np.array_equal(one.scores["msp"], five.scores["msp"])


def test_a_run_with_another_decoder_is_another_run(tmp_path):
    streams = streams_of(tmp_path, seed=1)
    evaluate(tmp_path / "out", streams)
    reduced = evaluate(tmp_path / "out", streams, decode=partial(decode_image, reduce_to=8))
    assert reduced.run.data.decoder == "decode_image(reduce_to=8)"
    with pytest.raises(RunIsCompleteError):
        evaluate(tmp_path / "out", streams, decode=partial(decode_image, reduce_to=8))


def record_files(cache: Path, streams: list[Stream], **options) -> None:
    data = OODDataModule(streams, transform=to_tensor, **options)
    make_trainer(FeatureCache(cache)).predict(make_module(), data, return_predictions=False)


def test_a_cache_is_not_that_of_other_files_of_the_same_names(tmp_path):
    record_files(tmp_path / "cache", streams_of(tmp_path, seed=1))
    open_cache(tmp_path / "cache", make_module(), OODDataModule(streams_of(tmp_path, seed=1), transform=to_tensor))
    other = OODDataModule(streams_of(tmp_path, seed=5), transform=to_tensor)
    for use in (
        lambda: open_cache(tmp_path / "cache", None, other),
        lambda: record_files(tmp_path / "cache", other.streams),
    ):
        with pytest.raises(FingerprintError, match="'val' was recorded from other data \\(other sizes or contents"):
            use()


def test_a_cache_of_another_decoder_is_refused(tmp_path):
    streams = streams_of(tmp_path, seed=1)
    record_files(tmp_path / "cache", streams)
    with pytest.raises(FingerprintError, match=r"workers decode_image\(reduce_to=8\)"):
        record_files(tmp_path / "cache", streams, decode=partial(decode_image, reduce_to=8))
    data = OODDataModule(streams, transform=to_tensor, decode=partial(decode_image, reduce_to=8))
    with pytest.raises(FingerprintError, match=r"workers decode_image\(reduce_to=8\)"):
        open_cache(tmp_path / "cache", None, data)


def test_features_of_another_precision_make_another_run(tmp_path):
    scores = []
    for place, precision in enumerate(("32-true", "bf16-true")):
        record(tmp_path / str(place), trainer={"precision": precision})
        (tmp_path / "cache").unlink(missing_ok=True)
        (tmp_path / "cache").symlink_to(tmp_path / str(place), target_is_directory=True)
        module, data = open_cache(tmp_path / "cache")
        detection = OODDetection([MSP()], output_dir=tmp_path / "out", num_thumbnails=0, resume=True)
        make_trainer(detection).predict(module, data, return_predictions=False)
        scores.append(detection.results.scores["msp"].to_numpy())
    assert not np.array_equal(*scores)
    assert len(scores[0]) == sum(len(stream) for stream in make_streams(with_train=False))
