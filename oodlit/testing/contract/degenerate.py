"""Checks with degenerate training sets and heads."""

from collections.abc import Callable
from dataclasses import replace

import torch

from oodlit.base.errors import OodlitError
from oodlit.base.outputs import Head
from oodlit.testing.clauses import Factory, clause, fitted_on_training_data
from oodlit.testing.comparison import fitted
from oodlit.testing.contract.scores import auroc_of
from oodlit.testing.problems import Problem, ProblemFactory, select

MIN_AUROC = 0.9
"""Minimum AUROC on separated data."""


@clause(
    "degenerate-training",
    "If the training set has dead units, a constant feature, fewer images than dimensions, or one repeated image per"
    " class, scores stay finite, even far from the training images, or the fit raises a clear error. If"
    " `larger_residual_is_worse` is declared, a larger residual with unchanged logits never raises the score.",
    applies=fitted_on_training_data,
)
def check_degenerate_training(factory: Factory, problem: ProblemFactory) -> None:
    """Fit on degenerate training sets, and score images at increasing distances."""
    for what, spoil in _FAULTS.items():
        data = spoil(problem())
        try:
            detector = fitted(factory, data)
        except OodlitError:
            continue  # a clear error
        last = None
        direction = torch.ones(data.head.width) * (data.head.weight.abs().amax(dim=0) == 0)
        for size in (0.0, 1.0, 1e2, 1e4):
            tests = data.tests
            features = tests.require("features") + size * (direction if direction.any() else 1.0)
            scores = detector.score(replace(tests, features=features))
            bad = int((~scores.isfinite()).sum())
            assert not bad, (
                f"{what}: {bad} of {len(scores)} scores are not finite if {size:g} is added to features of the images"
            )
            if last is not None and direction.any() and "larger_residual_is_worse" in detector.invariances:
                rise = float((scores - last).max())
                assert rise <= 1e-6 * float(last.abs().max()), (
                    f"{what}: the score rose by {rise:.6g} with a larger residual"
                )
            last = scores


def _constant_feature(data: Problem) -> Problem:
    first = (torch.arange(data.head.width) == 0).float()
    return data.with_features(lambda x: x * (1 - first) + 3 * first, data.head)


def _equal_images(data: Problem) -> Problem:
    """One image per class, repeated."""
    labels = data.train.require("labels")
    first = torch.stack([(labels == label).nonzero()[0, 0] for label in labels.tolist()])
    return replace(data, train=replace(select(data.train, first), keys=data.train.keys))


_FAULTS: dict[str, Callable[[Problem], Problem]] = {
    "dead units": Problem.without_unused_features,
    "a constant feature": _constant_feature,
    "fewer images than dimensions": lambda p: replace(p, train=select(p.train, slice(0, 2 * p.head.num_classes))),
    "one repeated image per class": _equal_images,
}


@clause(
    "logit-constant",
    "After a constant is added to all biases of the head, the detector still separates ID from OOD images.",
)
def check_logit_constant(factory: Factory, problem: ProblemFactory) -> None:
    """Shift the mean of the largest logits to zero, far below, and far above."""
    usual = auroc_of(fitted(factory, problem()).score(problem().tests), problem().tests_are_id)
    level = float(problem().train.max_logits.mean())
    for constant in (-level, -2 * level, 2 * level):
        data = _with_constant(problem(), constant)
        auroc = auroc_of(fitted(factory, data).score(data.tests), data.tests_are_id)
        assert auroc >= min(MIN_AUROC, usual), (
            f"with {constant:.3g} added to the bias of all classes, the AUROC on well-separated data fell from"
            f" {usual:.3f} to {auroc:.3f}; expected at least {min(MIN_AUROC, usual):.3g}"
        )


def _with_constant(data: Problem, constant: float) -> Problem:
    with torch.no_grad():
        data.model.linear.bias.add_(constant)
    head = Head(data.head.weight, data.head.offset + constant)
    return data.mapped(lambda outputs: replace(outputs, logits=outputs.require("logits") + constant), head)
