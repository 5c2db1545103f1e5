"""Checks of the fit: independence of batches, repeated fits, and missing data."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from oodlit.base.errors import NotFittedError, OodlitError
from oodlit.base.outputs import Outputs
from oodlit.detectors import Detector
from oodlit.detectors.contract.fitting import make_statistics
from oodlit.testing.clauses import Factory, clause, examples, fitted_on_training_data
from oodlit.testing.comparison import assert_same_scores, fit_on
from oodlit.testing.contract.invariances import rename_classes
from oodlit.testing.problems import Problem, ProblemFactory, cut, select
from oodlit.testing.shorten import shorten


def _needs_a_fit(detector: Detector) -> str:
    return "" if detector.required_statistics or "head" in detector.required_needs else "has no fit"


@clause(
    "fit-batches",
    "The fit does not depend on the order of the training set, or on how it is split into batches.",
    applies=fitted_on_training_data,
)
def check_batches_in_fit(factory: Factory, problem: ProblemFactory) -> None:
    """Compare scores after fits with any order and batch sizes."""
    from oodlit.testing.strategies import cuts  # noqa: PLC0415  # hypothesis on use

    data = problem()
    expected = fit_on(factory(), [select(data.train, slice(None))], data.head).score(data.tests)

    @examples(order_and_sizes=cuts(len(data.train)))
    def _(order_and_sizes: Any) -> None:
        order, sizes = order_and_sizes
        found = fit_on(factory(), cut(data.train, sizes, order), data.head).score(data.tests)
        assert_same_scores(found, expected, what=f"fitted on batches of {shorten(sizes)} images in another order")


@clause(
    "fit-merge",
    "Merged statistics of two parts of the training set equal those of the whole set.",
    applies=fitted_on_training_data,
)
def check_merged_halves(factory: Factory, problem: ProblemFactory) -> None:
    """Merge two parts in both orders, and an empty part; the merged parts must not change."""
    data = problem()
    half = len(data.train) // 2
    first, second = select(data.train, slice(0, half)), select(data.train, slice(half, None))
    expected = _scores_of_merged(factory, data, [[first, second]])
    for what, parts in {
        "two halves merged": [[first], [second]],
        "two halves merged in reverse order": [[second], [first]],
        "an empty part merged into the whole": [[first, second], []],
        "the whole merged into an empty part": [[], [first, second]],
    }.items():
        assert_same_scores(_scores_of_merged(factory, data, parts), expected, what=what)


def _scores_of_merged(factory: Factory, data: Problem, parts: list[list[Outputs]]) -> Tensor:
    detector, accumulated = factory(), []
    for batches in parts:
        statistics = make_statistics([detector])
        for batch in batches:
            statistics.update(batch)
        accumulated.append(statistics)
    total, *others = accumulated
    for part in others:
        for kind, statistic in total.items():
            seen = part[kind].num_samples
            statistic.merge(part[kind])
            assert part[kind].num_samples == seen, f"{kind.__name__}.merge changed its argument"
    detector.fit(total, data.head if "head" in detector.required_needs else None)
    return detector.score(data.tests)


@clause("refit", "A second fit completely replaces the first fit.", applies=fitted_on_training_data)
def check_refit(factory: Factory, problem: ProblemFactory) -> None:
    """Fit on other data, then on the training set, and compare state and scores with those of a new detector."""
    data = problem()
    fresh = fit_on(factory(), [data.train], data.head)
    # two thirds of the images with other features: every fitted number changes, and no count is too small
    other = select(data.train, slice(0, 2 * len(data.train) // 3))
    other = replace(other, logits=other.require("logits") * 0.5, features=other.require("features") * 1.5 + 0.1)
    twice = factory()
    try:
        fit_on(twice, [other], data.head)
    except OodlitError:
        fit_on(twice, [data.train], data.head)  # settings may require the whole set; a repeated fit is a refit too
    fit_on(twice, [data.train], data.head)
    expected, found = dict(fresh.named_buffers()), dict(twice.named_buffers())
    assert expected.keys() == found.keys(), f"buffers {sorted(expected)} became {sorted(found)}"
    for name, value in expected.items():
        assert value.shape == found[name].shape, (
            f"buffer {name}: shape {tuple(found[name].shape)} after a refit, but {tuple(value.shape)} in a new detector"
        )
        assert torch.equal(value.nan_to_num(), found[name].nan_to_num()), f"buffer {name} depends on the first fit"
    assert_same_scores(twice.score(data.tests), fresh.score(data.tests), what="fitted twice")


@clause("not-fitted", "Scoring before the fit raises NotFittedError.", applies=_needs_a_fit)
def check_unfitted(factory: Factory, problem: ProblemFactory) -> None:
    """Score without a fit, which must raise a clear error."""
    detector, data = factory(), problem()
    assert not detector.is_fitted, "is_fitted is True before any fit"
    try:
        detector.score(data.tests)
    except NotFittedError as error:
        if type(detector).__name__ not in str(error):
            raise AssertionError(f"the error does not name the class of the detector: {error}") from error
    except Exception as error:
        raise AssertionError(f"score raised {type(error).__name__} ({error}), not NotFittedError") from error
    else:
        raise AssertionError("expected NotFittedError before the fit, but score returned scores")


@clause(
    "missing-class",
    "A class without training images is left out, or the fit raises a clear error; scores are never NaN, and the other"
    " classes keep their ids.",
    applies=fitted_on_training_data,
)
def check_missing_class(factory: Factory, problem: ProblemFactory) -> None:
    """Fit without a class in the middle and one at the end; then on the same classes, renamed."""
    present = [0, 1, 3, 4]
    scores = _scores_of_classes(factory, problem(), keep=present)
    if scores is None or "class_permutation" not in factory().invariances:
        return
    order = torch.tensor([2, 4, 0, 5, 3, 1])
    named = order.argsort()[present].tolist()
    renamed = _scores_of_classes(factory, rename_classes(problem(), order), keep=named)
    if renamed is None:
        raise AssertionError(f"the fit works with classes {present}, but fails if they are renamed to {named}")
    assert_same_scores(renamed, scores, what=f"classes {present} renamed to {named}", rtol=1e-4)


@clause(
    "one-image-per-class",
    "One training image per class is enough, or the fit raises a clear error; scores are never NaN.",
    applies=fitted_on_training_data,
)
def check_one_image_per_class(factory: Factory, problem: ProblemFactory) -> None:
    """Fit on the first image of each class."""
    _scores_of_classes(factory, problem(), per_class=1)


@clause(
    "one-class",
    "A training set of one class is enough, or the fit raises a clear error; scores are never NaN.",
    applies=fitted_on_training_data,
)
def check_one_class(factory: Factory, problem: ProblemFactory) -> None:
    """Fit on the images of class 0."""
    _scores_of_classes(factory, problem(), keep=[0])


def _scores_of_classes(
    factory: Factory, data: Problem, *, keep: list[int] | None = None, per_class: int | None = None
) -> Tensor | None:
    """Scores after a fit on some classes or on few images per class; None if the fit raises a clear error."""
    labels = data.train.require("labels")
    wanted = torch.ones_like(labels).bool() if keep is None else torch.isin(labels, torch.tensor(keep))
    if per_class is not None:
        rank = torch.stack([(labels[: i + 1] == labels[i]).sum() for i in range(len(labels))])
        wanted &= rank <= per_class
    train = select(data.train, wanted)
    try:
        detector = fit_on(factory(), [train], data.head)
    except OodlitError:
        return None
    scores = detector.score(data.tests)
    bad = int(scores.isnan().sum())
    assert not bad, f"{bad} of {len(scores)} scores are NaN after a fit on {len(train)} images"
    return scores
