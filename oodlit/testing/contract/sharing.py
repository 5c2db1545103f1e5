"""Checks of shared tensors, and of memory layouts."""

from collections.abc import Callable

import torch
from torch import Tensor

from oodlit.base.errors import OodlitError
from oodlit.base.outputs import Outputs
from oodlit.detectors.contract.fitting import make_statistics
from oodlit.detectors.statistics import Statistics
from oodlit.testing.clauses import Factory, clause
from oodlit.testing.comparison import assert_same_scores, fit_on, fitted
from oodlit.testing.problems import Problem, ProblemFactory, change_tensors, select
from oodlit.testing.shorten import shorten

_DERIVED = (
    "predictions",
    "max_logits",
    "probabilities",
    "max_probabilities",
    "logsumexp",
    "log_probabilities",
    "feature_norms",
    "unit_features",
)


@clause(
    "shared-tensors",
    "Fit and score do not write to shared tensors: the head, and what Outputs and Statistics keep. Score does not write"
    " to buffers. Scores are not views of these tensors.",
)
def check_shared_tensors(factory: Factory, problem: ProblemFactory) -> None:
    """Derive all values first; then fit and score, and compare the values."""
    data = problem()
    head = data.head if "head" in factory().required_needs else None
    statistics = make_statistics([factory()])
    statistics.update(data.train)
    detector = factory()
    detector.fit(statistics, head)  # derives the values that all detectors share
    before = _copies(_memo(statistics))
    detector.fit(statistics, head)
    _compare(before, _memo(statistics), "fit")
    outputs = select(data.tests, slice(None))
    for name in _DERIVED:
        getattr(outputs, name)

    def shared() -> dict[str, Tensor]:
        buffers = {f"buffer {name}": value for name, value in detector.named_buffers()}
        return {**{name: getattr(outputs, name) for name in _DERIVED}, **_memo(outputs), **buffers}

    for _ in range(2):  # the second score uses what the first one derives
        known = shared()
        before = _copies(known)
        scores = detector.score(outputs)
        _compare(before, shared(), "score")
    scores.fill_((torch.finfo if scores.is_floating_point() else torch.iinfo)(scores.dtype).min)
    _compare(before, known, "a write to the scores")


def _memo(owner: Outputs | Statistics) -> dict[str, Tensor]:
    """Shared tensors by key."""
    parts = {key: value if isinstance(value, tuple) else (value,) for key, value in owner.memoized.items()}
    return {f"{key}, {i}": t for key, value in parts.items() for i, t in enumerate(value) if isinstance(t, Tensor)}


def _copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in tensors.items()}


def _compare(before: dict[str, Tensor], after: dict[str, Tensor], step: str) -> None:
    for name, value in before.items():
        if name in after:
            same = torch.equal(after[name].nan_to_num(), value.nan_to_num())
            assert same, f"{step} changed the shared tensor {shorten(name)}"


@clause(
    "layouts",
    "Memory layouts do not change scores. Hidden activations (batch, channels, ...) with one, two or three"
    " spatial dimensions get the same scores, or raise a clear error.",
)
def check_layouts(factory: Factory, problem: ProblemFactory) -> None:
    """Score tensors in channels_last layout, and with gaps; then maps with positions in one or three dimensions."""
    data = problem()
    expected = fitted(factory, data).score(data.tests)
    layouts: dict[str, Callable[[Outputs], Outputs]] = {
        "inputs in channels-last memory": _channels_last,
        "non-contiguous inputs": _with_gaps,
    }
    for what, lay in layouts.items():
        found = fit_on(factory(), [lay(data.train)], data.head).score(lay(data.tests))
        assert_same_scores(found, expected, what=what, rtol=1e-4)
    if "hidden" not in factory().required_needs:
        return
    arrangements: dict[str, Callable[[Tensor], Tensor]] = {
        "hidden activations of shape (batch, channels, positions)": lambda value: value.flatten(2),
        "hidden activations of shape (batch, channels, 1, height, width)": lambda value: value.unsqueeze(2),
    }
    for what, arrange in arrangements.items():
        arranged = _arranged(data, arrange)
        try:
            found = fitted(factory, arranged).score(arranged.tests)
        except OodlitError:
            continue  # a clear error
        except Exception as error:
            raise AssertionError(f"fit or score on {what} raised {type(error).__name__}: {error}") from error
        assert_same_scores(found, expected, what=what, rtol=1e-4)


def _channels_last(outputs: Outputs) -> Outputs:
    def lay(tensor: Tensor) -> Tensor:
        if tensor.ndim == 4:
            return tensor.contiguous(memory_format=torch.channels_last)
        return tensor.T.contiguous().T if tensor.ndim == 2 else tensor

    return _with(outputs, lay)


def _with_gaps(outputs: Outputs) -> Outputs:
    return _with(outputs, lambda tensor: tensor.repeat_interleave(2, dim=0)[::2])


def _with(outputs: Outputs, lay: Callable[[Tensor], Tensor]) -> Outputs:
    return change_tensors(outputs, lambda field, tensor: tensor if field in ("labels", "groups") else lay(tensor))


def _arranged(data: Problem, arrange: Callable[[Tensor], Tensor]) -> Problem:
    def of_maps(field: str, tensor: Tensor) -> Tensor:
        return arrange(tensor) if field == "hidden" and tensor.ndim == 4 else tensor

    return data.mapped(lambda outputs: change_tensors(outputs, of_maps))
