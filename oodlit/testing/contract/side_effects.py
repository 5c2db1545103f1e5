"""Checks of side effects, and of undeclared inputs."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from oodlit.base.outputs import Outputs, version_of
from oodlit.detectors import Detector
from oodlit.detectors.contract.class_paths import parameters_of
from oodlit.testing.clauses import Factory, clause
from oodlit.testing.comparison import assert_same_scores, fit_on, fitted
from oodlit.testing.problems import ProblemFactory

_FIELDS = ("logits", "features", "images", "labels", "groups")


@clause("no-side-effects", "Fit and score change neither the outputs nor the network.")
def check_outputs_unchanged(factory: Factory, problem: ProblemFactory) -> None:
    """Compare values and version counters of all tensors, and mode and state of the network, before and after.

    Both in float32 and in float64, because a conversion of dtype only copies tensors of the other dtype.
    """
    data = problem()
    network = _network_state(data.model.network)
    head = [version_of(data.head.weight), version_of(data.head.offset)]
    for dtype in (torch.float32, torch.float64):
        given = {"fit": data.train.to(dtype=dtype), "score": data.id.to(dtype=dtype)}
        before = {s: {n: (v.clone(), version_of(v)) for n, v in _tensors(o).items()} for s, o in given.items()}
        fit_on(factory(), [given["fit"]], data.head).score(given["score"])
        for step, snapshot in before.items():
            for name, (values, version) in snapshot.items():
                tensor = _tensors(given[step])[name]
                assert torch.equal(tensor, values), f"{step} changed outputs.{name} ({dtype})"
                assert version_of(tensor) == version, f"{step} overwrote outputs.{name} with equal values ({dtype})"
    after = _network_state(data.model.network)
    changed = sorted(name for name in network if not _equal(network[name], after[name]))
    assert not changed, f"the network was changed: {', '.join(changed)}"
    assert head == [version_of(data.head.weight), version_of(data.head.offset)], "the head was written to"


def _tensors(outputs: Outputs) -> dict[str, Tensor]:
    hidden = {f"hidden[{n!r}]": v for n, v in (outputs.hidden or {}).items()}
    return {n: v for n in _FIELDS if (v := getattr(outputs, n)) is not None} | hidden


def _network_state(network: nn.Module) -> dict[str, object]:
    modes = {f"training mode of {n or 'the network'}": m.training for n, m in network.named_modules()}
    hooks = {f"hooks of {n or 'the network'}": len(m._forward_hooks) for n, m in network.named_modules()}
    state = {n: v.clone() for n, v in network.state_dict().items()}
    wants = {f"requires_grad of {n}": p.requires_grad for n, p in network.named_parameters()}
    gradients = {f"gradient of {n}": p.grad is None for n, p in network.named_parameters()}
    return {**modes, **hooks, **state, **wants, **gradients}


def _equal(a: object, b: object) -> bool:
    return torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b


@clause("random-state", "Fit and score do not use global random generators; random numbers come from a seed.")
def check_random_state(factory: Factory, problem: ProblemFactory) -> None:
    """Compare the states of torch's and numpy's generators before and after."""
    data = problem()
    detector = factory()
    # warm up first: libraries may draw numbers on first use
    fit_on(factory(), [data.train], data.head).score(data.tests)
    before = _random_states()
    fit_on(detector, [data.train], data.head)
    detector.score(data.tests)
    changed = [name for name, state in _random_states().items() if state != before[name]]
    assert not changed, f"fit or score used the global random generator of {', '.join(changed)}"


def _random_states() -> dict[str, object]:
    # without Python's `random`, which run-time type checkers use
    kind, keys, position, *_ = np.random.get_state()  # the global generator is checked
    return {"torch": torch.get_rng_state().numpy().tobytes(), "numpy": (kind, np.asarray(keys).tobytes(), position)}


def _has_settings(detector: Detector) -> str:
    return "" if parameters_of(type(detector)) else "has no settings"


@clause("frozen", "Settings cannot be changed after the fit.", applies=_has_settings)
def check_settings_frozen(factory: Factory, problem: ProblemFactory) -> None:
    """Try to replace every setting."""
    detector = fitted(factory, problem())
    for name in (name for name in parameters_of(type(detector)) if hasattr(detector, name)):
        try:
            setattr(detector, name, getattr(detector, name))
        except AttributeError:
            continue
        raise AssertionError(f"setting {name!r} of a fitted detector can be replaced")


@clause("needs", "A detector only reads what `needs` and its statistics declare.")
def check_needs_are_enough(factory: Factory, problem: ProblemFactory) -> None:
    """Remove undeclared fields, then fill them with nonsense: the scores must not change."""
    data = problem()
    expected = fitted(factory, data).score(data.tests)
    at_score = factory().required_needs
    at_fit = at_score.union(*(s.needs for s in factory().required_statistics))

    def scores(change: str) -> Tensor:
        fresh = problem()
        detector = factory()
        alter = _without_fields if change == "absent" else _with_nonsense
        fitted(lambda: detector, replace(fresh, train=alter(fresh.train, at_fit)))
        return detector.score(alter(fresh.tests, at_score))

    for change in ("absent", "filled with nonsense"):
        try:
            found = scores(change)
        except Exception as error:
            raise AssertionError(
                f"fit or score reads an undeclared field: with all undeclared fields {change}, it raised"
                f" {type(error).__name__}: {error}. Add the field to `needs`, which declares"
                f" {', '.join(sorted(at_score)) or 'no field'}"
            ) from error
        assert_same_scores(found, expected, what=f"with undeclared fields {change}")


def _without_fields(outputs: Outputs, names: frozenset[str]) -> Outputs:
    """The outputs with the declared fields and keys only."""
    kept = {n: getattr(outputs, n) for n in (*_FIELDS, "hidden", "model") if n in names}
    if not {"logits", "features"} & kept.keys():
        kept["logits"] = torch.zeros_like(outputs.require("logits"))  # outputs must have one of them
    return Outputs(**kept, keys=outputs.keys)


def _with_nonsense(outputs: Outputs, names: frozenset[str]) -> Outputs:
    """The outputs with other values of the same shape in undeclared fields."""
    undeclared = {"logits", "features", "images"} - names
    changed: dict[str, Any] = {name: outputs.require(name).flip(0) * 3 - 7 for name in undeclared}
    if "labels" not in names:
        changed["labels"] = (outputs.require("labels") + 1).clamp(min=0)
    if "hidden" not in names:
        changed["hidden"] = {n: v.flip(0) * 3 - 7 for n, v in (outputs.hidden or {}).items()}
    if "model" not in names:
        changed["model"] = None
    return replace(outputs, groups=outputs.require("groups") + 5, **changed)
