"""The page of a benchmark by name: published figures beside those of the run, and why they are not compared."""

import re
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from torch import nn
from torchvision.transforms import CenterCrop, Compose, Normalize, Resize, ToTensor

from oodlit import OODModule
from oodlit.callbacks import OODDetection
from oodlit.datamodules import Benchmark
from oodlit.detectors import MSP, Energy
from oodlit.report import partial_text, render
from oodlit.results.published import published_table
from tests.datamodules.test_benchmark_tables import root, toy_lists  # noqa: F401


@pytest.mark.filterwarnings("ignore")  # of missing images and undefined values in such small sets
def test_the_page_of_a_benchmark_has_published_figures_and_the_reason_for_no_difference(
    root: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 1000))
    network.pretrained_cfg = {"architecture": "resnet50", "tag": "tv_in1k", "crop_pct": 0.875}
    transform = Compose([Resize(256), CenterCrop(224), ToTensor(), Normalize([0.5] * 3, [0.5] * 3)])
    detection = OODDetection([MSP(), Energy()], output_dir=tmp_path / "run", explain=0)
    trainer = pl.Trainer(accelerator="cpu", callbacks=[detection], logger=False, enable_progress_bar=False)
    data = Benchmark("openood-v1.5", root, train=False, complete=False, num_workers=0)
    trainer.predict(OODModule(network, transform=transform), data, return_predictions=False)
    page = render({"run": detection.results})
    section = page.partition(">Published figures</h2>")[2].partition("</section>")[0]
    board = {
        (f.detector, f.dataset): f.value
        for f in published_table("openood_imagenet1k").figures()
        if f.model == "ResNet50"
    }
    for detector, printed in (("MSP", "MSP"), ("Energy", "EBO")):
        for dataset in ("near", "far"):
            [row] = re.findall(rf"<tr><th>{detector}</th><td>{dataset}</td>(.*?)</tr>", section)
            ours, published, difference, _ = re.findall(r"<td class=\"num\"[^>]*>([^<]*)</td>", row)
            assert ours == f"{100 * detection.results.value('auroc', dataset=dataset, detector=detector.lower()):.1f} %"
            assert published == f"{100 * board[printed, dataset]:.7g} %"
            assert difference == "-"
    n = detection.results.run.counts["imagenet_val"]
    reason = f"No difference for ([^:]*): imagenet_val has 45,000 images in the table, {n} in this run."
    found = re.search(reason, section)
    assert found is not None
    assert {"auroc of near", "auroc of far"} <= set(found[1].split(", "))
    assert "published auroc" not in page  # one place for published figures
    counts = detection.results.run.counts
    text = partial_text(detection.results)
    assert text.startswith(f"Not all images were scored: imagenet_val {n} of 45,000, ssb_hard")
    assert f"textures {counts['textures']} of 5,160" in text
    assert text in page
