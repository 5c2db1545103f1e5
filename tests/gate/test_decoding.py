"""A gate decodes files as its run did, or says that it cannot."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from oodlit import Gate, OODModule, Results, Role
from oodlit.datamodules import FileSource, OODDataModule, Stream, decode_image
from oodlit.detectors import MSP
from oodlit.errors import FingerprintError, InvalidArgumentError
from tests.gate.support import TinyNetwork, run


def inverted(data: bytes) -> Image.Image:
    return ImageOps.invert(decode_image(data))


def to_tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image.resize((8, 8)), dtype=np.float32) / 255).permute(2, 0, 1)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("files")
    generator = torch.Generator().manual_seed(0)
    paths = [folder / f"{place}.png" for place in range(20)]
    for path in paths:
        pixels = torch.randint(256, (32, 32, 3), dtype=torch.uint8, generator=generator)
        Image.fromarray(pixels.numpy()).save(path)
    return paths


def evaluated(folder: Path, files: list[Path], decode) -> Path:
    streams = [
        Stream("val", Role.ID, FileSource(files[:10], labels=[0, 1] * 5), tuple("abcdefg")),
        Stream("far", Role.OOD, FileSource(files[10:])),
    ]
    run(OODModule(TinyNetwork(), transform=to_tensor), OODDataModule(streams, decode=decode), [MSP()], folder)
    return folder


def scores(gate: Gate, files: list[Path]) -> list[float]:
    return [verdict.score for verdict in gate([path.read_bytes() for path in files])]


@pytest.mark.parametrize("decode", [inverted, partial(decode_image, reduce_to=8)], ids=["own", "reduced"])
def test_a_decoder_of_the_run_must_be_passed(tmp_path: Path, files: list[Path], decode) -> None:
    folder = evaluated(tmp_path / "run", files, decode)
    expected = Results.load(folder).scores.query("dataset == 'val'")["msp"].tolist()
    options = {"model": TinyNetwork(), "transform": to_tensor}
    gate = Gate.load(folder, decode=decode, **options)
    assert scores(gate, files[:10]) == pytest.approx(expected, abs=1e-6)
    without = Gate.load(folder, **options)
    with pytest.raises(InvalidArgumentError, match=r"the run decoded files with .*decode="):
        scores(without, files[:10])
    pictures = [decode(path.read_bytes()) for path in files[:10]]
    assert [verdict.score for verdict in without(pictures)] == pytest.approx(expected, abs=1e-6)
    with pytest.raises(FingerprintError, match="as in the run, got decode_image"):
        Gate.load(folder, decode=decode_image, **options)
    gate.save(tmp_path / "gate")
    with pytest.raises(InvalidArgumentError, match="the run decoded files with"):
        scores(Gate.load(tmp_path / "gate", **options), files[:10])
    assert scores(Gate.load(tmp_path / "gate", decode=decode, **options), files) == scores(gate, files)


def test_a_run_with_the_usual_decoder_accepts_no_other(tmp_path: Path, files: list[Path]) -> None:
    folder = evaluated(tmp_path / "run", files, partial(decode_image, max_pixels=10**6))
    gate = Gate.load(folder, model=TinyNetwork(), transform=to_tensor)
    assert len(scores(gate, files)) == 20
    with pytest.raises(FingerprintError, match="expected decode=decode_image, as in the run, got inverted"):
        Gate.load(folder, model=TinyNetwork(), transform=to_tensor, decode=inverted)


def toned(data: bytes, api_key: str = "", store: str = "", color_key: int = 0) -> Image.Image:
    return inverted(data) if api_key or store or color_key else decode_image(data)


@pytest.mark.parametrize(
    "options",
    [{"api_key": "hush hush"}, {"store": "https://user:hush@x.org/"}, {"color_key": 51, "api_key": "hush"}],
    ids=["key", "address", "number"],
)
def test_a_decoder_with_secret_arguments_is_recognized_without_writing_them(
    tmp_path: Path, files: list[Path], options: dict[str, object]
) -> None:
    folder = evaluated(tmp_path / "run", files, partial(toned, **options))
    assert "hush" not in (folder / "run.json").read_text()
    known = {"model": TinyNetwork(), "transform": to_tensor}
    gate = Gate.load(folder, decode=partial(toned, **options), **known)
    expected = Results.load(folder).scores.query("dataset == 'val'")["msp"].tolist()
    assert scores(gate, files[:10]) == pytest.approx(expected, abs=1e-6)
    gate.save(tmp_path / "gate")
    assert "hush" not in (tmp_path / "gate" / "gate.json").read_text()
    Gate.load(tmp_path / "gate", decode=partial(toned, **options), **known)
    for name in options:
        with pytest.raises(FingerprintError, match=r"as in the run, got toned.*; pass the decoder"):
            Gate.load(folder, decode=partial(toned, **options | {name: "token=other"}), **known)
