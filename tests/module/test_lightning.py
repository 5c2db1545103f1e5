"""`import lightning as L` works like `import pytorch_lightning as pl`; a wrong mixture is explained."""

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from oodlit import OODModule
from oodlit.callbacks import OODDetection
from oodlit.detectors import MSP
from tests.callbacks.processes import check_ended, run_function

ROOT = Path(__file__).parents[2]
RUN = """
import warnings
warnings.simplefilter("ignore")
import torch
from oodlit import OODModule, Role
from oodlit.callbacks import OODDetection
from oodlit.datamodules import MemorySource, OODDataModule, Sample, Stream
from oodlit.detectors import MSP, Mahalanobis
from oodlit.testing.backbones import TinyConvNet

def stream(name, role, count):
    return Stream(name, role, MemorySource([Sample(str(i), torch.rand(3, 8, 8), label=i % 6) for i in range(count)]))

detection = OODDetection([MSP(), Mahalanobis()])
options = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "callbacks": [detection]}
data = OODDataModule([stream("train", Role.TRAIN, 12), stream("val", Role.ID, 9), stream("far", Role.OOD, 12)])
LIGHTNING.Trainer(**options).predict(OODModule(TinyConvNet(6)), data, return_predictions=False)
base = next(kind for kind in type(detection).__mro__ if kind.__name__ == "Callback")
print(base.__module__, len(detection.results.scores))
"""


CHILD = '''
import os, subprocess
child = """
from oodlit.callbacks import OODDetection
print(*[kind.__module__ for kind in OODDetection.__mro__ if kind.__name__ == 'Callback'])
"""
print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True).stdout)
'''


def in_a_new_process(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


def check_ran(lines: list[str], package: str) -> None:
    base, images = lines[-1].split()
    assert base.startswith(package)
    assert int(images) == 12 + 9 + 12


@pytest.mark.integration
def test_lightning_works_and_child_processes_inherit_the_choice():
    done = in_a_new_process(f"import lightning as LIGHTNING, sys\n{RUN}\n{CHILD}")
    assert done.returncode == 0, done.stderr[-1500:]
    *lines, chosen = done.stdout.split("\n")[:-2]
    check_ran(lines, "lightning.pytorch")
    assert chosen.startswith("lightning.pytorch")


def with_pytorch_lightning() -> None:
    assert "lightning" not in sys.modules
    exec(f"import pytorch_lightning as LIGHTNING\n{RUN}", {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        OODDetection([MSP()])
        OODModule(torch.nn.Linear(2, 2))


def test_pytorch_lightning_works_without_a_warning(tmp_path):
    done = run_function(with_pytorch_lightning, folder=tmp_path, each=[{}], timeout=120)
    check_ended(done)
    check_ran(done[0].stdout.splitlines(), "pytorch_lightning")


MIXTURE = """
import sys, warnings
warnings.simplefilter("error", UserWarning)
import torch
{imports}
from oodlit.datamodules import MemorySource, OODDataModule, Sample, Stream
from oodlit.testing.backbones import TinyConvNet

warnings.simplefilter("ignore")
quiet = {{"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}}
samples = [Sample(str(i), torch.rand(3, 8, 8), label=i % 6) for i in range(9)]
for package in (pl, lightning):
    class Other(package.LightningModule):
        def forward(self, batch): return batch

    for module, callbacks in ((OODModule(TinyConvNet(6)), []), (OODModule(TinyConvNet(6)), 1), (Other(), 1)):
        data = OODDataModule([Stream("val", Role.ID, MemorySource(samples))])
        trainer = package.Trainer(**quiet, callbacks=callbacks and [OODDetection([MSP()])])
        try:
            trainer.predict(module, data, return_predictions=False)
            print(package.__name__, "ran")
        except OodlitError as error:
            print(package.__name__, str(error).replace("\\n", " "))
"""
OODLIT = """
from oodlit import OODModule, Role
from oodlit.callbacks import OODDetection
from oodlit.detectors import MSP
from oodlit.errors import OodlitError
"""
OURS, THEIRS = "import pytorch_lightning as pl\n", "import lightning\n"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("imports", "ours"),
    [
        (OODLIT + THEIRS + OURS, "pytorch_lightning"),
        (OURS + OODLIT + THEIRS, "pytorch_lightning"),
        (THEIRS + OODLIT + OURS, "lightning"),
        (THEIRS + OURS + OODLIT, "lightning"),
    ],
)
def test_both_packages_in_any_order_run_or_are_explained(imports, ours):
    done = in_a_new_process(MIXTURE.format(imports=imports))
    assert done.returncode == 0, done.stderr[-1500:]
    other = "lightning" if ours == "pytorch_lightning" else "pytorch_lightning"
    lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
    own, refused = ([text for package, text in lines if package == name] for name in (ours, other))
    assert own[:2] == ["ran", "ran"]
    assert "expected an OODModule, got a Other" in own[2]
    assert len(refused) == 3
    for text in refused:
        assert f"got one from {other}" in text
        assert f"Use {ours}" in text
        assert f"write `import {other}` above all imports of oodlit" in text


LATER = """
import warnings
warnings.simplefilter("ignore")
from torch import nn
from oodlit import OODModule
from oodlit.callbacks import OODDetection
from oodlit.datamodules import DigitsBenchmark
from oodlit.detectors import MSP

data = DigitsBenchmark(per_test=2)
module = OODModule(nn.Sequential(nn.Flatten(), nn.Linear(192, 7)), transform=data.transform)
detection = OODDetection([MSP()])
import {other} as pl
options = {{"accelerator": "cpu", "logger": False, "enable_progress_bar": False}}
class Plain(pl.LightningModule):
    def predict_step(self, batch):
        return batch
for model, callbacks in ((module, []), (module, [detection]), (Plain(), [detection])):
    try:
        pl.Trainer(callbacks=callbacks, **options).predict(model, data, return_predictions=False)
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.mark.integration
@pytest.mark.parametrize(("first", "other"), [("pytorch_lightning", "lightning"), ("lightning", "pytorch_lightning")])
def test_parts_that_exist_before_the_other_package_is_imported_are_explained(first: str, other: str) -> None:
    done = in_a_new_process(f"import {first}\n{LATER.format(other=other)}")
    assert done.returncode == 0, done.stderr[-1500:]
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    for line in lines:
        assert line.startswith("InvalidArgumentError")
        assert f"got one from {other}" in line
        assert f"write `import {other}` above all imports of oodlit" in line
