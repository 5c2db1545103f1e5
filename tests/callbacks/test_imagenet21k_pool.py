"""A pool that was packed from ImageNet-21k, from its folders to levels: parts, counts, release and the warning."""

import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torchvision.transforms import ToTensor

from oodlit import OODModule, Role
from oodlit.callbacks import OODDetection
from oodlit.datamodules import MemorySource, OODDataModule, Sample, Stream, build_set, describe, set_stream
from oodlit.datamodules.severity.imagenet21k_listing import list_imagenet21k
from oodlit.detectors import MSP
from oodlit.results import FindingWarning, Results
from tests.callbacks.support import make_trainer

CLASSES = ("n02513355", "n02515214", "n02632494", "n03118346", "n12433081")


def test_from_folders_to_levels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for wnid in CLASSES:
        (tmp_path / "in21k" / wnid).mkdir(parents=True)
        for i in range(12):
            image = Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8))
            image.save(tmp_path / "in21k" / wnid / f"{wnid}_{i}.png")
    listing = list_imagenet21k(tmp_path / "in21k", complete=False, estimation=6, test=3)
    build_set(describe("imagenet21k"), listing, tmp_path / "shards", complete=False)
    pool = set_stream(describe("imagenet21k"), tmp_path / "shards", complete=False)
    inside = [Sample(f"{i}", torch.from_numpy(rng.random((3, 8, 8), dtype=np.float32)), label=i % 3) for i in range(30)]
    streams = [Stream("val", Role.ID, MemorySource(inside), ("a", "b", "c")), pool]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    detection = OODDetection([MSP()], output_dir=tmp_path / "results")
    module = OODModule(network, transform=ToTensor())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FindingWarning)
        make_trainer(detection).predict(module, OODDataModule(streams, batch_size=4), return_predictions=False)
    assert any("ID objects in 38 % of a sample of such images" in str(w.message) for w in caught)
    results = Results.load(tmp_path / "results")
    entry = results.run.pools["imagenet21k"]
    assert (entry.classes, entry.estimation, entry.test, entry.split) == (5, 30, 15, "as packed from fall11")
    found = results.severities("imagenet21k", "msp")
    assert set(found["n_estimation"]) == {6}
    assert set(found["n_test"]) == {3}
    assert {name.split()[0] for name in found["ood_class"]} == set(CLASSES)
    tested = results.scores.loc[results.scores["dataset"] == "imagenet21k", "key"]
    assert tested.str.startswith("imagenet21k/test/").all()
    page = (tmp_path / "results" / "report.html").read_text(encoding="utf-8")
    assert "ID objects in 38 % of a sample of such images" in page
    assert "data:image/png;base64," in page
