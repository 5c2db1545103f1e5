"""FAULTS2 C1: `import lightning as L` works as `import pytorch_lightning as pl` does; a mixture is warned of."""

import subprocess
import sys
from pathlib import Path

import pytest

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
print(type(detection).__mro__[1].__module__, len(detection.results.scores))
"""


def in_a_new_process(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("name", "package"), [("lightning", "lightning.pytorch"), ("pytorch_lightning",) * 2])
def test_c1_both_packages_work(name, package):
    done = in_a_new_process(f"import {name} as LIGHTNING\n{RUN}")
    assert done.returncode == 0, done.stderr[-1500:]
    base, images = done.stdout.splitlines()[-1].split()
    assert base.startswith(package)
    assert int(images) == 12 + 9 + 12


def test_c1_processes_that_are_started_inherit_the_choice():
    code = """
import lightning, os, subprocess, sys
import oodlit.callbacks
child = "import oodlit.callbacks as c; print(c.OODDetection.__mro__[1].__module__)"
print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True).stdout)
"""
    assert in_a_new_process(code).stdout.startswith("lightning.pytorch")


@pytest.mark.parametrize("made", ["OODDetection([MSP()])", "OODModule(torch.nn.Linear(2, 2))"])
def test_c1_the_second_package_beside_the_first_is_warned_of(made):
    code = f"""
import torch
from oodlit import OODModule
from oodlit.callbacks import OODDetection
from oodlit.detectors import MSP
import lightning
{made}
"""
    assert "or import lightning before oodlit" in in_a_new_process(code).stderr
    assert "before oodlit" not in in_a_new_process(code.replace("import lightning\n", "")).stderr
