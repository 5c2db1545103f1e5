"""Others read our shards, and we read theirs: webdataset's writer and reader, timm's reader."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import webdataset
from PIL import Image
from timm.data import create_dataset

from oodlit.datamodules.keys import unescape_key
from oodlit.datamodules.shards import Entry, ShardSource, build_shards
from oodlit.roles import Role
from tests.tiny_shards import tiny_image

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # both leave their files to the garbage collector
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PATHS = ["n01.x/a_0.9976.JPEG", "n01.x/b c.jpeg", "n02/__d__.png", "n02/é.webp", "n03/.f.PNG"]


def ours(folder: Path) -> list[Entry]:
    formats = {"JPEG": "JPEG", "jpeg": "JPEG", "webp": "WEBP"}
    entries = [
        Entry(path, lambda i=i, path=path: tiny_image(i, format=formats.get(path.rpartition(".")[2], "PNG")), label=i)
        for i, path in enumerate(PATHS)
    ]
    build_shards(entries, folder, name="imagenet1k", role=Role.ID, shard_size=2)
    return entries


def test_timm_reads_our_shards(tmp_path: Path) -> None:
    entries = ours(tmp_path)
    dataset = create_dataset("wds/ours", root=str(tmp_path), split="validation", is_training=False, batch_size=2)
    assert len(dataset) == len(PATHS)
    items = list(dataset)
    assert [label for _, label in items] == list(range(len(PATHS)))
    for (image, _), entry in zip(items, entries, strict=True):
        expected = Image.open(io.BytesIO(entry.read())).convert("RGB")
        assert np.array_equal(np.asarray(image), np.asarray(expected))


def test_webdataset_reads_our_shards(tmp_path: Path) -> None:
    entries = ours(tmp_path)
    urls = [str(path) for path in sorted(tmp_path.glob("*.tar"))]
    samples = list(webdataset.WebDataset(urls, shardshuffle=False, empty_check=False))
    assert [unescape_key(sample["__key__"]) for sample in samples] == PATHS
    for sample, entry in zip(samples, entries, strict=True):
        assert entry.read() in sample.values()
        assert int(sample["cls"]) == entry.label
        assert json.loads(sample["json"])["path"] == entry.path


@pytest.mark.parametrize("manifest", [True, False])
def test_we_read_shards_of_webdataset_in_the_layout_of_timm(tmp_path: Path, manifest: bool) -> None:
    keys = []
    with webdataset.ShardWriter(str(tmp_path / "imagenet1k-validation-%02d.tar"), maxcount=3, verbose=0) as sink:
        for i in range(8):
            key = f"n{i % 2:08d}_{i:05d}"
            meta = {"label": i, "filename": f"n{i % 2:08d}/{key}.JPEG", "width": 8, "height": 8}
            sink.write({"__key__": key, "jpg": tiny_image(i, format="JPEG"), "cls": i, "json": meta})
            keys.append(key)
    if manifest:
        split = {
            "name": "validation",
            "filenames": [f"imagenet1k-validation-{i:02d}.tar" for i in range(3)],
            "shard_lengths": [3, 3, 2],
            "num_samples": 8,
        }
        (tmp_path / "_info.json").write_text(json.dumps({"name": "imagenet1k", "splits": {"validation": split}}))
    source = ShardSource(str(tmp_path / "imagenet1k-validation-{00..02}.tar"))
    assert [(s.key, s.label, s.group) for s in source.read(0, 8)] == [(key, i, -1) for i, key in enumerate(keys)]
    assert [s.key for s in ShardSource(tmp_path).read(2, 7)] == keys[2:7]
