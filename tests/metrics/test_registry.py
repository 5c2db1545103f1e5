"""`oodlit.metrics.__all__` is the registry: nothing in it can be forgotten."""

import inspect
import math
import pickle
from pathlib import Path

import pytest
import torch
import torchmetrics

import oodlit.metrics as m

CLASSES = [n for n in m.__all__ if inspect.isclass(getattr(m, n)) and issubclass(getattr(m, n), torchmetrics.Metric)]
FUNCTIONS = [n for n in m.__all__ if inspect.isfunction(getattr(m, n))]
RAISING = ("operating_point", "risk_curve")
"""Functions that raise an error where there is no answer."""
MAKE = {
    "DetectionErrorRate": lambda: m.DetectionErrorRate(threshold=0.5),
    "MeanOverClasses": lambda: m.MeanOverClasses(m.AUROC(), 2),
    "SeverityLevels": lambda: m.SeverityLevels(2, id_classes=1),
    "UnitTestFailures": lambda: m.UnitTestFailures(2),
}


def make(name):
    return MAKE.get(name, getattr(m, name))()


def fed(metric):
    """The metric after one batch of eight images."""
    scores = torch.tensor([0.9, 0.8, 0.7, 0.3, 0.6, 0.2, 0.1, 0.75])
    given = {
        "scores": scores,
        "is_ood": torch.arange(8) >= 4,
        "is_correct": torch.tensor([True, True, False, True] * 2),
        "groups": torch.tensor([-1] * 4 + [0, 0, 1, 1]),
        "is_test": torch.arange(8) % 2 == 0,
        "confidences": scores.exp(),
        "predictions": torch.tensor([0, 1, 2, 3] * 2),
        "labels": torch.tensor([0, 1, 2, 2] * 2),
    }
    names = [name for name in inspect.signature(type(metric).update).parameters if name != "self"]
    metric.update(given[names[0]], **{name: given[name] for name in names[1:]})
    return metric


def test_the_registry_is_complete_and_sorted():
    assert len(m.__all__) == len(set(m.__all__))
    assert (len(CLASSES), len(FUNCTIONS)) == (18, 30)
    files = {p.stem for p in Path(m.__file__).parent.rglob("*.py")} - {"__init__"}
    assert {getattr(m, name).__module__.rpartition(".")[2] for name in m.__all__} <= files


@pytest.mark.parametrize("name", [*CLASSES, *FUNCTIONS])
def test_documentation(name):
    doc = inspect.getdoc(getattr(m, name))
    assert "Example:" in doc
    assert ">>>" in doc
    if name in FUNCTIONS:
        assert "Args:" in doc
        assert "Returns:" in doc
    if name not in ("wilson_interval", "mean_corruption_error", "subset_predictions", *RAISING):
        assert "NaN" in doc


@pytest.mark.parametrize("name", CLASSES)
def test_classes_are_ordinary_torchmetrics(name):
    metric = fed(make(name))
    value = metric.compute()
    for leaf in value.values() if isinstance(value, dict) else [value]:
        assert leaf.dtype == torch.float64
        assert not leaf.isnan().any()
    again = pickle.loads(pickle.dumps(metric)).compute()
    clone = metric.clone().compute()
    assert str(again) == str(clone) == str(value)
    assert metric.higher_is_better in (True, False)
    metric.reset()
    assert str(fed(metric).compute()) == str(value)


@pytest.mark.parametrize("name", [n for n in CLASSES if n not in ("MeanOverClasses", "SeverityLevels")])
def test_plot(name):
    import matplotlib.pyplot as plt

    metric = fed(make(name))
    figure, axes = metric.plot()
    assert axes.lines
    assert not math.isnan(metric.compute())
    plt.close(figure)


def test_a_collection_of_metrics():
    collection = torchmetrics.MetricCollection([m.AUROC(), m.FPRAtTPR(), m.AUPRSuccess(), m.AUPRError()])
    collection.update(torch.tensor([4.0, 3, 2, 1, 2.5, 0.5]), is_ood=torch.arange(6) >= 4)
    values = collection.compute()
    assert values["AUPRSuccess"].item() == pytest.approx(0.8875)
    assert values["AUPRError"].item() == pytest.approx(0.75)
    assert values["AUROC"].item() == pytest.approx(0.75)
