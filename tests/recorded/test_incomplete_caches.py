"""Incomplete caches are reported: images that were skipped or left out of a trial, and missing parts of the cache."""

import io
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from torchvision.transforms import ToTensor

from oodlit import Role
from oodlit.callbacks import OODDetection
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.sources import MemorySource
from oodlit.datamodules.stream import Sample, Stream
from oodlit.detectors import MSP
from oodlit.errors import DataError
from oodlit.recorded import open_cache
from oodlit.report.headline import partial_text
from tests.callbacks.support import make_module, make_streams, make_trainer
from tests.recorded.support import edit_manifest, record, rows_in


def half_stream(first: bytes = b"broken") -> Stream:
    bad = [Sample("bad", first), *(Sample(f"{i}", torch.full((3, 8, 8), i / 9)) for i in range(5))]
    return Stream("half", Role.OOD, MemorySource(bad))


@pytest.mark.filterwarnings("ignore:.*undefined .NaN.")
@pytest.mark.parametrize("how", [{}, {"max_images": 3}], ids=["all", "trial"])
def test_numbers_of_a_part_of_the_images_say_so_from_a_cache_as_well(tmp_path, how):
    """A trial would be compared with published numbers, and skipped images would only be in the record."""
    streams = [*(s for s in make_streams() if s.name == "val"), half_stream()]
    record(tmp_path, streams, on_error="skip", **how)
    data = OODDataModule(streams, on_error="skip", **how)
    told = []
    for module, read in ((make_module(), data), open_cache(tmp_path, data=data), open_cache(tmp_path)):
        detection = OODDetection([MSP()])
        with pytest.warns(UserWarning, match="skipped images: 1"):
            make_trainer(detection).predict(module, read, return_predictions=False)
        told.append((partial_text(detection.results), detection.results.run.data.streams))
        assert [info.num_samples for info in detection.results.datasets] == [30, 6]
    assert told[0] == told[1] == told[2]
    assert "half" in told[0][0]


def test_images_that_were_skipped_are_missing_where_none_may_be(tmp_path):
    """They may have been mended since; the rest is not recorded again."""
    inside = [s for s in make_streams() if s.name == "val"]
    how = {"batch_size": 2, "transform": ToTensor()}
    record(tmp_path, [*inside, half_stream()], on_error="skip", **how)
    with pytest.raises(DataError, match=r"'half' was recorded without 1 of its 6 images \(first: 'half/bad', undecod"):
        open_cache(tmp_path, data=OODDataModule([*inside, half_stream()], transform=ToTensor()))
    with pytest.raises(DataError, match="key 'bad': undecodable image"):
        record(tmp_path, [*inside, half_stream()], **how)
    assert record(tmp_path, [*inside, half_stream()], on_error="skip", **how) == 0
    picture = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(picture, "PNG")
    assert record(tmp_path, [*inside, half_stream(picture.getvalue())], **how) == 6
    assert len(rows_in(tmp_path)["half"]) == 6


def test_a_partial_recording_with_skipped_images_restarts_if_none_may_be_skipped(tmp_path):
    inside = [s for s in make_streams() if s.name == "val"]
    how = {"batch_size": 2, "transform": ToTensor()}
    record(tmp_path, [*inside, half_stream()], on_error="skip", kill_at=17, **how)
    with pytest.raises(DataError, match="key 'bad': undecodable image"):
        record(tmp_path, [*inside, half_stream()], **how)


@pytest.mark.parametrize("name", ["parts", "skipped", "content", "images", "class_names"])
def test_a_manifest_with_a_missing_entry_is_damaged(whole, tmp_path, name):
    folder = Path(shutil.copytree(whole, tmp_path / "copy"))
    edit_manifest(folder, lambda manifest: manifest["streams"][1].pop(name))
    with pytest.raises(DataError, match=rf"cache\.json: .*`{name}` - at `\$\.streams\[1\]`"):
        open_cache(folder)


@pytest.mark.parametrize("damage", ["missing", "cut", "other"])
def test_a_missing_head_file_is_an_error(whole, tmp_path, damage):
    """Detectors that need it would be left out, or fail at the end of the run."""
    folder = Path(shutil.copytree(whole, tmp_path / "copy"))
    head = folder / "head.safetensors"
    content = head.read_bytes()
    head.unlink()
    if damage != "missing":
        head.write_bytes(content[:-8] if damage == "cut" else content.replace(b"weight", b"height"))
    if damage == "other":
        edit_manifest(folder, lambda manifest: manifest.pop("head_checksum"))
    reason = {"missing": r"missing or damaged \(", "cut": r"damaged \(.*", "other": r"missing .*no array 'weight'"}[
        damage
    ]
    with pytest.raises(DataError, match=rf"head\.safetensors is {reason}.*\); choose another folder .* or delete this"):
        open_cache(folder)
