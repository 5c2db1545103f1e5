"""Data sets whose images differ in shape are a finding: detectors could tell the sets apart by size alone."""

import pytest
import torch
from torch import nn

from oodlit import OODModule, Results, Role
from oodlit.detectors import KNN, MSP
from tests.callbacks.support import predict, stream

pytestmark = pytest.mark.filterwarnings("ignore::oodlit.results.FindingWarning")


@pytest.mark.parametrize("size", [8, 12])
def test_sets_of_different_shapes_are_a_finding(size, tmp_path):
    parts = [stream("train", Role.TRAIN, 12), stream("val", Role.ID, 12)]
    parts.append(stream("far", Role.OOD, 6, image=torch.rand(3, size, size)))
    network = nn.Sequential(nn.Conv2d(3, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 6))
    detection = predict([MSP(), KNN(k=1)], parts, module=OODModule(network), output_dir=tmp_path)
    for results in (detection.results, Results.load(tmp_path)):
        found = [finding.text for finding in results.findings if finding.kind == "sizes"]
        assert len(found) == (size != 8)
        assert all("differ in shape" in text for text in found)
