"""Checks in other processes, which several detectors can share."""

from oodlit.testing.clauses import Factory, clause, fitted_on_training_data, peers_of
from oodlit.testing.comparison import assert_same_scores
from oodlit.testing.launch import LaunchResult, launch
from oodlit.testing.problems import ProblemFactory


@clause(
    "saved", "A saved fit returns the same scores in a new process. Settings are plain values, and state is in buffers."
)
def check_saved(factory: Factory, problem: ProblemFactory) -> None:
    """Save, then load and score in another process."""
    _compare(_result(factory, problem), ("saved",), rtol=1e-6)


@clause(
    "fit-processes",
    "Two processes with parts of the training set get the same fit as one process with the whole set.",
    applies=fitted_on_training_data,
)
def check_two_processes(factory: Factory, problem: ProblemFactory) -> None:
    """Fit in real processes with uneven parts, and with an empty part."""
    _compare(_result(factory, problem), ("uneven parts", "an empty part"), rtol=1e-5)


def _result(factory: Factory, problem: ProblemFactory) -> LaunchResult:
    factories = peers_of(factory)
    return launch(factories, problem)[factories.index(factory)]


def _compare(result: LaunchResult, steps: tuple[str, ...], *, rtol: float) -> None:
    general = [f"{k}: {v}" for k, v in result.errors.items() if k.startswith(("preparing", "processes"))]
    assert not general, "; ".join(general)
    for step in steps:
        for rank in (0, 1):
            name = f"{step}, rank {rank}"
            assert name not in result.errors, f"{name}: {result.errors[name]}"
            assert_same_scores(result.scores[name], result.expected[step], what=name, rtol=rtol)
