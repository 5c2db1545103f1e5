"""Checks of a detector's declared `invariances`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from oodlit.base.outputs import Head, Outputs
from oodlit.testing.clauses import Check, Factory, clause, declares, examples
from oodlit.testing.comparison import assert_same_ranking, assert_same_scores, fitted
from oodlit.testing.problems import Problem, ProblemFactory
from oodlit.testing.shorten import shorten

INVARIANCES = {
    "logit_shift": "Adding a constant to all logits of an image does not change its score.",
    "logit_shift_equivariance": "Adding a constant to all logits of an image adds the same constant to its score.",
    "feature_scale": "Scaling all features by c > 0 in fit and score, with unchanged logits, preserves the ranking.",
    "feature_affine": "An invertible affine map of features in fit and score, with unchanged logits, preserves scores.",
    "feature_rotation": "A rotation of the features in fit and score, with unchanged logits, preserves the scores.",
    "class_permutation": "Reordering the classes in head, logits and labels preserves the scores.",
    "mean_is_best": "Moving the features of an image to the training mean of a class never lowers its score.",
    "larger_residual_is_worse": (
        "With unchanged logits, a larger residual outside the space of the training features never raises the score,"
        " and a very large one lowers it."
    ),
}
"""Meaning of the names in `Detector.invariances`."""


def _invariance(name: str) -> Callable[[Callable[..., None]], Check]:
    return clause(name.replace("_", "-"), INVARIANCES[name], applies=declares(name))


@_invariance("logit_shift")
def check_logit_shift(factory: Factory, problem: ProblemFactory) -> None:
    """Shift the logits of every image by its own number from -20 to 20."""
    _shift_logits(factory, problem, follows=False)


@_invariance("logit_shift_equivariance")
def check_logit_shift_equivariance(factory: Factory, problem: ProblemFactory) -> None:
    """Shift the logits of every image by its own number from -20 to 20."""
    _shift_logits(factory, problem, follows=True)


def _shift_logits(factory: Factory, problem: ProblemFactory, *, follows: bool) -> None:
    from oodlit.testing.strategies import matrices, st  # noqa: PLC0415  # hypothesis on use

    data = problem()
    detector = fitted(factory, data)
    tests = data.tests
    expected = detector.score(tests)

    @examples(shifts=matrices(rows=len(tests), columns=1, elements=st.integers(-20, 20).map(float)))
    def _(shifts: Tensor) -> None:
        found = detector.score(replace(tests, logits=tests.require("logits") + shifts))
        target = expected + shifts[:, 0] if follows else expected
        # in float32, a logit of 8 shifted by 20 is only accurate to 2e-6
        assert_same_scores(found, target, what="logits shifted per image", rtol=1e-4)


def _compare_mapped(
    factory: Factory,
    problem: ProblemFactory,
    change: Callable[[Problem, Any], Problem],
    strategy: Any,
    what: str,
    compare: Callable[..., None] = assert_same_scores,
) -> None:
    """Fit and score changed problems, and compare the scores with those of the problem itself."""
    data = problem()
    expected = fitted(factory, data).score(data.tests)

    @examples(drawn=strategy)
    def _(drawn: Any) -> None:
        changed = change(problem(), drawn)
        compare(fitted(factory, changed).score(changed.tests), expected, what=f"{what} {shorten(drawn)}", rtol=1e-4)


@_invariance("feature_scale")
def check_feature_scale(factory: Factory, problem: ProblemFactory) -> None:
    """Multiply the features by factors from 1e-4 to 1e4."""
    from oodlit.testing.strategies import st  # noqa: PLC0415  # hypothesis on use

    def scale(data: Problem, power: float) -> Problem:
        return _map_features(data, 10**power * torch.eye(data.head.width, dtype=torch.float64))

    _compare_mapped(factory, problem, scale, st.floats(-4, 4), "features times 10 to the power", assert_same_ranking)


@_invariance("feature_affine")
def check_feature_affine(factory: Factory, problem: ProblemFactory) -> None:
    """Rotate the features, stretch each axis by 0.5 to 2, and shift them."""
    from oodlit.testing.strategies import rotations, st  # noqa: PLC0415  # hypothesis on use

    width = problem().head.width
    factors = torch.linspace(0.5, 2, width, dtype=torch.float64)
    shift = torch.linspace(-1, 1, width, dtype=torch.float64)

    def stretch(data: Problem, pair: tuple[Tensor, Tensor]) -> Problem:
        return _map_features(data, pair[0] * factors @ pair[1], shift)

    _compare_mapped(factory, problem, stretch, st.tuples(rotations(width), rotations(width)), "affine map of features")


@_invariance("feature_rotation")
def check_feature_rotation(factory: Factory, problem: ProblemFactory) -> None:
    """Rotate the features by products of reflections."""
    from oodlit.testing.strategies import rotations  # noqa: PLC0415  # hypothesis on use

    _compare_mapped(factory, problem, _map_features, rotations(problem().head.width), "features rotated by")


@_invariance("class_permutation")
def check_class_permutation(factory: Factory, problem: ProblemFactory) -> None:
    """Rename the classes in any order."""
    from oodlit.testing.strategies import st  # noqa: PLC0415  # hypothesis on use

    def rename(data: Problem, order: list[int]) -> Problem:
        return rename_classes(data, torch.tensor(order))

    orders = st.permutations(range(problem().head.num_classes))
    _compare_mapped(factory, problem, rename, orders, "classes in the order")


@_invariance("mean_is_best")
def check_mean_is_best(factory: Factory, problem: ProblemFactory) -> None:
    """Compare the scores at the class means with those of all images, and of points between."""
    data = problem()
    detector = fitted(factory, data)
    features, labels = data.train.require("features").double(), data.train.require("labels")
    means = torch.stack([features[labels == c].mean(dim=0) for c in torch.unique(labels).tolist()])
    tests = data.tests.require("features").double()
    for step in (0.0, 0.5, 0.9):
        start = torch.cat([m + (1 - step) * (tests - m) for m in means])
        goal = means.repeat_interleave(len(tests), dim=0)
        before, after = (detector.score(_with_features(data, x)) for x in (start, goal))
        worse = (after < before - 1e-6 * float(before.abs().max())).nonzero().flatten().tolist()
        assert not worse, (
            f"moving features to a class mean lowered the score from {float(before[worse[0]]):.8g} to"
            f" {float(after[worse[0]]):.8g}"
        )


@_invariance("larger_residual_is_worse")
def check_larger_residual_is_worse(factory: Factory, problem: ProblemFactory) -> None:
    """Increase features that training and head do not use, with constant logits."""
    data = problem().without_unused_features()
    detector = fitted(factory, data)
    direction = (data.head.weight.abs().amax(dim=0) == 0).float() * torch.linspace(0.5, 1.5, data.head.width)
    first = last = detector.score(data.id)
    for size in (0.1, 1.0, 5.0, 25.0, 125.0):
        found = detector.score(replace(data.id, features=data.id.require("features") + size * direction))
        rise = float((found - last).max())
        assert rise <= 1e-6 * float(last.abs().max()), f"the score rose by {rise:.6g} as the residual grew to {size}"
        last = found
    kept = f"{int((last >= first).sum())} of {len(first)} scores did not drop when it was added"
    assert (last < first).all(), f"a residual of size 125 must lower all scores, but {kept}"


def _with_features(data: Problem, features: Tensor) -> Outputs:
    x = features.float()
    return Outputs(data.head(x), x, keys=[f"probe/{i}" for i in range(len(x))])


def _map_features(data: Problem, matrix: Tensor, shift: Tensor | None = None) -> Problem:
    """Map features x to x matrix + shift, and the head accordingly, so that all logits stay the same."""
    if shift is None:
        shift = torch.zeros(data.head.width, dtype=torch.float64)
    weight = data.head.weight.double() @ torch.linalg.inv(matrix).T
    head = Head(weight, data.head.offset.double() - weight @ shift)
    return data.mapped(lambda o: replace(o, features=o.require("features").double() @ matrix + shift), head)


def rename_classes(data: Problem, order: Tensor) -> Problem:
    """Rename classes in outputs, head and network: new class i is old class order[i]."""
    linear = data.model.linear
    with torch.no_grad():
        linear.weight.copy_(linear.weight[order])
        linear.bias.copy_(linear.bias[order])
    position = order.argsort()

    def renamed(outputs: Outputs) -> Outputs:
        labels = outputs.require("labels")
        new = torch.where(labels < 0, labels, position[labels.clamp(min=0)])
        return replace(outputs, logits=outputs.require("logits")[:, order], labels=new)

    return data.mapped(renamed, Head(data.head.weight[order], data.head.offset[order]))
