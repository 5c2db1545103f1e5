"""Run by test_pipelines.py in several processes: two pipelines of webdataset, cut over the processes or not.

Usage: python -m tests.datamodules.pipeline_script DEVICES FOLDER cut|whole
"""

import sys
import warnings
from pathlib import Path

import webdataset as wds
from torchvision.transforms.functional import to_tensor

from oodlit import Role
from oodlit.callbacks import OODDetection
from oodlit.datamodules import pipeline_stream
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.detectors import MSP
from tests.callbacks.support import make_module, make_trainer


def whole(urls):
    yield from urls


def main(devices: int, folder: Path, how: str) -> None:
    splitter = wds.split_by_node if how == "cut" else whole
    streams = []
    for name, role in (("val", Role.ID), ("far", Role.OOD)):
        urls = [str(path) for path in sorted((folder / name).glob("*.tar"))]
        pipeline = wds.WebDataset(urls, shardshuffle=False, nodesplitter=splitter, empty_check=False).decode()
        streams.append(pipeline_stream(pipeline, name=name, role=role, count=13))
    detection = OODDetection([MSP()], output_dir=folder / how, num_thumbnails=0)
    trainer = make_trainer(detection, devices=devices, strategy="ddp")
    data = OODDataModule(streams, transform=to_tensor, batch_size=2)
    trainer.predict(make_module(), data, return_predictions=False)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
