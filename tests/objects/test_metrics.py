"""The torchmetrics classes give what the functions give, in any cut and from several processes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oodlit import objects
from oodlit.errors import InvalidArgumentError
from oodlit.metrics import UndefinedMetricWarning
from tests.callbacks.processes import check_ended, run_function

from . import process_worker
from .support import SCORES, Plain, matched, scenes

FUNCTIONS = {
    "UnknownAP": objects.ap_u,
    "UnknownPrecision": objects.p_u,
    "UnknownRecall": objects.r_u,
    "NOSE": objects.nose,
    "NOSEBoxes": objects.nose_boxes,
    "Dismissed": objects.dismissed,
    "AOSE": objects.aose,
}


@pytest.mark.filterwarnings("ignore::oodlit.metrics.UndefinedMetricWarning")
@given(scenes(), st.sampled_from(SCORES))
def test_batches_of_single_images_give_the_value_of_all(scene: Plain, tau: float) -> None:
    whole = matched(scene)
    made = {name: kind(tau) for name, kind in process_worker.METRICS.items()}
    for image in range(scene.n_images):
        part = matched(
            Plain(
                [b for b in scene.boxes if b.image == image],
                [found for found in scene.objects if found[0] == image],
                scene.n_images,
            )
        )
        columns = [torch.from_numpy(getattr(part, n)) for n in ("confidence", "scores", "objects", "overlaps")]
        for metric in made.values():
            metric.update(*columns, n_objects=part.n_objects)
    for name, metric in made.items():
        np.testing.assert_allclose(metric.compute().item(), FUNCTIONS[name](whole, tau=tau), rtol=0, atol=1e-12)


@pytest.mark.ddp
def test_two_processes_give_what_one_gives(tmp_path: Path) -> None:
    each = [{"RANK": str(rank)} for rank in range(2)]
    check_ended(run_function(process_worker.main, tmp_path, folder=tmp_path / "logs", each=each, timeout=150))
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert found[0] == found[1]
    alone = process_worker.values(range(6))
    assert len(alone) == 8
    assert not any(np.isnan(value) for value in alone.values())
    assert found[0] == {cut: pytest.approx(alone, abs=1e-12) for cut in process_worker.CUTS}


def test_merged_states_and_undefined_values() -> None:
    one, two = objects.UnknownRecall(0.0), objects.UnknownRecall(0.0)
    for metric, numbers in ((one, (0, 1)), (two, (2, 5))):
        for number in numbers:
            found = process_worker.image(number)
            names = ("confidence", "scores", "objects", "overlaps")
            metric.update(*(found[name] for name in names), n_objects=found["n_objects"])
    whole = objects.UnknownRecall(0.0)
    whole.merge_state(one)
    whole.merge_state(two)
    assert 0 < whole.compute().item() == process_worker.values((0, 1, 2, 5), tau=0.0)["UnknownRecall"] < 1
    with pytest.warns(UndefinedMetricWarning, match="no object is annotated"):
        assert objects.UnknownRecall(0.0).compute().isnan()
    with pytest.warns(UndefinedMetricWarning, match="there is no ID box to take tau from"):
        assert objects.UnknownRecall().compute().isnan()
    with pytest.warns(UndefinedMetricWarning, match="there is no ID object"):
        assert objects.WildernessImpact(3).compute().isnan()


def test_what_does_not_fit_is_named() -> None:
    ones, numbers = torch.ones(2), torch.tensor([0, 1])
    with pytest.raises(InvalidArgumentError, match=r"NOSE: objects must be numbers below n_objects=1"):
        objects.NOSE(0.0).update(ones, ones, numbers, ones, n_objects=1)
    with pytest.raises(
        InvalidArgumentError, match=r"fields differ in their number of boxes: {'confidence': 2, 'scores': 3"
    ):
        objects.NOSE(0.0).update(ones, torch.ones(3), numbers, ones, n_objects=2)
    with pytest.raises(InvalidArgumentError, match="rule='other'"):
        objects.NOSE(rule="other")
    with pytest.raises(InvalidArgumentError, match=r"object_classes must be in 0\.\.0"):
        objects.WildernessImpact(1).update(ones[:0], numbers[:0], numbers[:0], numbers[:0] > 0, object_classes=numbers)
