"""`Detector.confidences`: the probability where a score is its logarithm, for all detectors that oodlit has."""

import pytest
import torch

from oodlit import detectors
from oodlit.detectors import ASH, BATS, DICE, MSP, ODIN, SCALE, VRA, MCDropout, RankFeat, ReAct, TemperatureScaledMSP
from oodlit.detectors.contract import registry
from oodlit.outputs import Outputs
from oodlit.testing.comparison import fitted
from oodlit.testing.problems import separated_problem

LOGARITHMS = {"csp", "mcm", "msp", "neg_label", "odin", "relative_cosine", "temperature_scaled_msp"}


def test_which_detectors_score_logarithms_of_probabilities():
    """By their formulas; all others give what their papers average: energies, distances, entropies, probabilities."""
    kinds = registry.detectors()
    assert len(kinds) >= 41
    assert {name for name, kind in kinds.items() if kind().log_probability} == LOGARITHMS


@pytest.mark.parametrize("kind", [MSP, TemperatureScaledMSP, ODIN])
def test_the_confidence_is_the_largest_probability(kind):
    problem = separated_problem()
    settings = {"temperature": 2.0, "epsilon": 0.0} if kind is ODIN else {}
    detector = fitted(lambda: kind(**settings), problem)
    temperature = {MSP: 1.0, ODIN: 2.0}.get(kind) or float(detector.temperature)
    expected = (problem.tests.logits.double() / temperature).softmax(dim=1).amax(dim=1)
    found = detector.confidences(detector.score(problem.tests))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


def test_relative_cosine_is_a_softmax_of_cosines():
    problem = separated_problem()
    detector = fitted(detectors.RelativeCosine, problem)
    x = torch.nn.functional.normalize(problem.tests.features.double(), dim=1)
    concepts = torch.nn.functional.normalize(detector.directions.double(), dim=1)
    expected = (x @ concepts.T / detector.temperature).softmax(dim=1).amax(dim=1)
    torch.testing.assert_close(detector.confidences(detector.score(problem.tests)), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", [ASH, BATS, DICE, RankFeat, ReAct, SCALE, VRA])
def test_a_reshaping_follows_what_scores_its_logits(kind):
    assert not kind().log_probability
    assert kind(then=MSP()).log_probability
    assert not kind(then=detectors.MaxLogit()).log_probability


def test_probabilities_themselves_stay():
    assert not MCDropout(measure="max").log_probability
    assert MCDropout(measure="max").confidences(torch.tensor([0.25])).tolist() == [0.25]


def test_infinities_and_ties():
    """A probability of 0 has the logarithm -inf; confident images that tie as probabilities do not tie as scores."""
    assert MSP().confidences(torch.tensor([-float("inf"), 0.0])).tolist() == [0.0, 1.0]
    scores = MSP().score(Outputs(torch.tensor([[60.0, 0.0], [80.0, 0.0]])))
    assert scores[0] < scores[1]
    assert MSP().confidences(scores).tolist() == [1.0, 1.0]
