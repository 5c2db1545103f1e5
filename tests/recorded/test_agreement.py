"""Recorded logits that contradict the head, or that are not logits."""

import pytest
import torch

from oodlit import Head, evaluate_arrays
from oodlit.detectors import MSP, Energy, ReAct
from oodlit.errors import InvalidArgumentError

pytestmark = pytest.mark.filterwarnings("ignore::oodlit.results.FindingWarning")


def linear_sets(dtype=torch.float32):
    """A head, and sets of features with its logits, that grow from one set to the next."""
    generator = torch.Generator().manual_seed(0)
    head = Head(torch.randn(3, 8, generator=generator), torch.randn(3, generator=generator))
    sets = {}
    for name, number in (("train", 300), ("id", 9000), ("ood", 9000)):
        features = torch.randn(number, 8, generator=generator).to(dtype)
        sets[name] = {"features": features, "logits": head(features.float()).to(dtype)}
    sets["train"]["labels"] = sets["train"]["logits"].argmax(dim=1)
    return head, sets


def damaged(name, number, how):
    head, sets = linear_sets()
    logits = sets[name]["logits"].clone()
    logits[number:] = how(logits[number:])
    return head, sets | {name: sets[name] | {"logits": logits}}


@pytest.mark.parametrize("name", ["train", "id", "ood"])
@pytest.mark.parametrize(
    ("number", "how"),
    [
        (0, lambda logits: -logits),
        (250, lambda logits: -logits),  # not the first rows
        (0, lambda logits: logits.flip(0)),
        (0, lambda logits: logits * 1.005),  # less than the rounding of half precision
        (0, lambda logits: logits.softmax(dim=1)),
    ],
)
def test_logits_of_one_set_that_are_not_those_of_the_head_are_refused(name, number, how):
    head, sets = damaged(name, number, how)
    with pytest.raises(InvalidArgumentError, match=f"^'{name}': "):
        evaluate_arrays(**sets, head=head, detectors=[MSP()])


def test_softmax_in_place_of_logits_is_named_by_its_set_without_a_head_too():
    _, sets = damaged("ood", 0, lambda logits: logits.softmax(dim=1))
    with pytest.raises(InvalidArgumentError, match="'ood': every row of the logits contains probabilities"):
        evaluate_arrays(**sets, detectors=[MSP()])
    _, sets = damaged("ood", 8000, lambda logits: logits.softmax(dim=1))  # a part alone is no set of shares
    assert evaluate_arrays(**sets, detectors=[MSP()]).detectors == ("msp",)


def test_logarithms_of_probabilities_in_one_set_are_an_error():
    _, sets = damaged("ood", 0, lambda logits: logits.log_softmax(dim=1))
    with pytest.raises(
        InvalidArgumentError, match="'ood': every row of the logits contains logarithms of probabilities"
    ):
        evaluate_arrays(**sets, detectors=[Energy()])


def test_probabilities_in_one_set_and_logarithms_in_another_are_told_apart():
    _, sets = linear_sets()
    for name, how in (("id", torch.softmax), ("ood", torch.log_softmax)):
        sets[name]["logits"] = how(sets[name]["logits"], dim=1)
    message = r"^'id': every row .* probabilities \(.*\), unlike the rows of 'train', 'ood'; pass"
    with pytest.raises(InvalidArgumentError, match=message):
        evaluate_arrays(**sets, detectors=[MSP()])


@pytest.mark.parametrize(
    ("how", "end"), [(torch.softmax, "softmax$"), (torch.log_softmax, "softmax. MSP gives the same scores with these")]
)
def test_outputs_of_a_softmax_in_all_sets_are_a_warning(how, end):
    _, sets = linear_sets()
    sets = {name: {**given, "logits": how(given["logits"], dim=1)} for name, given in sets.items()}
    with pytest.warns(UserWarning, match=rf"every row .* Most detectors require the logits before the {end}"):
        evaluate_arrays(**sets, detectors=[MSP()])


def test_a_head_that_is_off_by_less_than_half_precision_is_not_used_for_single_precision():
    head, sets = linear_sets()
    off = Head(head.weight * 1.005, head.offset)
    with pytest.warns(UserWarning, match="differ from those that the head"):
        results = evaluate_arrays(**sets, head=off, detectors=[MSP(), ReAct()])
    assert "in all sets" in results.run.not_applicable["react"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("stored", [None, torch.float32])
def test_rounding_of_half_precision_is_no_difference(dtype, stored):
    head, sets = linear_sets(dtype)
    if stored:
        for arrays_of in sets.values():
            arrays_of |= {name: arrays_of[name].to(stored) for name in ("features", "logits")}
    assert not evaluate_arrays(**sets, head=head, detectors=[MSP(), ReAct()]).run.not_applicable
