"""`oodlit evaluate --benchmark` on some images of some sets, in one and in two processes."""

import zipfile
from pathlib import Path

import pytest

from oodlit.base.known_classes.imagenet import subset_labels, wnids
from oodlit.cli.main import main
from oodlit.datamodules.benchmarks.lists import published_list
from oodlit.datamodules.published_sets import build_set
from oodlit.datamodules.sets import describe
from oodlit.results import Results
from tests.callbacks.processes import check_ended, run_together
from tests.tiny_shards import tiny_image

CORRUPTED = {name.rpartition("/")[2] for name in published_list("imagenet_c_10000")}
"""Validation images from which ImageNet-C would be generated."""
NOT_ID = published_list("imagenet_val_5000")
OTHERS = sorted({f"ILSVRC2012_val_{i:08d}.JPEG" for i in range(1, 200)} - CORRUPTED - {*NOT_ID})[:11]
VAL = [f"val/{wnid}/{name}" for wnid, name in zip(wnids(), OTHERS, strict=False)]
FILES = {
    "imagenet_val": [*VAL, f"val/{wnids()[0]}/{next(name for name in NOT_ID if name not in CORRUPTED)}"],
    "ssb_hard": [*published_list("ssb_hard_49000")[:5], "n00000001/n00000001_1.JPEG"],
    "inaturalist": [f"images/{name.upper()}" for name in published_list("inaturalist_10000")[:3]],
    "textures": [*published_list("textures_5160")[:7], "zigzagged/zigzagged_9999.jpg"],
    "openimage_o": [name.replace(".jpg", ".png") for name in published_list("openimage_o_15869")[:3]],
    "imagenet_r": [f"imagenet-r/{wnids()[label]}/art_0.jpg" for label in subset_labels("imagenet_r")[:3]],
}
USED = {"imagenet_val": 11, "ssb_hard": 5, "inaturalist": 3, "textures": 7, "openimage_o": 3, "imagenet_r": 3}


def evaluate(processes: int, root: Path, out: Path) -> None:
    """Run the command in one of the processes."""
    words = ["evaluate", "--benchmark", "openood-v1.5", "--root", str(root), "--incomplete", "--batch_size", "2"]
    words += ["--backbone", "test_resnet", "--weights", "none", "--detectors", "[MSP, Energy]"]
    assert main([*words, "--accelerator", "cpu", "--devices", str(processes), "--out", str(out)]) == 0


@pytest.mark.integration
@pytest.mark.ddp
@pytest.mark.filterwarnings("ignore:ssb_hard")
def test_two_processes_have_the_table_of_one(tmp_path: Path) -> None:
    for name, paths in FILES.items():
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as file:
            for number, path in enumerate(paths):
                file.writestr(path, tiny_image(number))
        build_set(describe(name), tmp_path / f"{name}.zip", tmp_path / "shards" / name, complete=False)
    for processes in (1, 2):
        out = tmp_path / f"out{processes}"
        check_ended(run_together(evaluate, processes, tmp_path / "shards", out, folder=tmp_path / f"logs{processes}"))
    one, two = (Results.load(tmp_path / f"out{processes}") for processes in (1, 2))
    assert two.run.trainer.processes == 2
    assert one.run.counts == two.run.counts == USED
    assert (tmp_path / "out1/table.csv").read_bytes() == (tmp_path / "out2/table.csv").read_bytes()
    order = ["dataset", "key"]
    rows = [r.scores.sort_values(order).reset_index(drop=True) for r in (one, two)]
    assert rows[0].equals(rows[1])
    reasons = {(u.dataset, u.metric): u.reason for u in one.run.undefined}
    assert reasons["near", "auroc"] == "this run is missing these data sets: ninco"
    assert reasons["far", "fs_auroc"] == "this run is missing these shifted data sets: imagenet_v2, imagenet_c"
    assert one.value("auroc", dataset="far", detector="energy") >= 0
