"""The same values on a GPU; run with `-m gpu`."""

import pytest
import torch

import oodlit.metrics as m
from oodlit import metrics as F

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_values_are_equal_on_every_device(dtype):
    generator = torch.Generator().manual_seed(0)
    id_scores = (torch.randn(5000, generator=generator) + 1).to(dtype)
    ood_scores = torch.randn(700, generator=generator).to(dtype)
    correct = torch.rand(5000, generator=generator) < 0.8
    for function in (F.fpr_at_tpr, F.auroc, F.detection_error, F.aupr_success, F.aupr_error):
        expected = function(id_scores, ood_scores)
        assert function(id_scores.cuda(), ood_scores.cuda()) == pytest.approx(expected, abs=1e-12)
        assert function(id_scores.cuda(), ood_scores) == pytest.approx(expected, abs=1e-12)
    for function in (F.id_auroc, F.aurc, F.augrc):
        assert function(id_scores.cuda(), correct.cuda()) == pytest.approx(function(id_scores, correct), abs=1e-12)
        assert function(id_scores.cuda(), correct) == pytest.approx(function(id_scores, correct), abs=1e-12)
    value = F.oscr(id_scores.cuda(), ood_scores.cuda(), is_correct=correct.cuda())
    assert value == F.oscr(id_scores, ood_scores, is_correct=correct)
    assert F.auroc_interval(id_scores.cuda(), ood_scores.cuda()) == pytest.approx(
        F.auroc_interval(id_scores, ood_scores)
    )


def test_a_metric_on_either_device_takes_scores_from_the_gpu():
    scores, is_ood = torch.tensor([0.9, 0.8, 0.1, 0.85]).cuda(), torch.tensor([False, False, True, True]).cuda()
    for metric in (m.AUROC(), m.AUROC().cuda()):
        metric.update(scores, is_ood=is_ood)
        assert metric.compute().item() == 0.75
