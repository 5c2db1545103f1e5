"""Mistakes of a first detector, and what the kit says of them."""

import pytest
import pytorch_lightning as pl
import torch

from oodlit import OODModule, Role
from oodlit.callbacks import OODDetection
from oodlit.datamodules import MemorySource, OODDataModule, Sample, Stream
from oodlit.detectors import Detector, Reference, TrainFreeDetector
from oodlit.detectors.contract.saving import detector_to_config
from oodlit.detectors.statistics import ClassMoments
from oodlit.errors import InvalidArgumentError
from oodlit.testing import ConformanceError, check_detector, checks, launch, parametrize_with_checks, separated_problem
from oodlit.testing.backbones import TinyConvNet
from oodlit.testing.clauses import peers
from oodlit.testing.shorten import shorten

PAPER = Reference("A first detector", "A. Nonymous", "example", 2024, "https://example.org")


class Largest(TrainFreeDetector):
    needs = frozenset({"logits"})
    reference = PAPER

    def _score(self, outputs):
        return outputs.max_logits


class OtherName(Largest):
    def __init__(self, temp=1.0):
        super().__init__()
        self.temperature = temp


class AnyOption(Largest):
    def __init__(self, **options):
        super().__init__()


class NoSuper(Largest):
    def __init__(self, k=1):
        self.k = k


class NoNeeds(TrainFreeDetector):
    reference = PAPER

    def _score(self, outputs):
        return outputs.max_logits


class UsesHead(Detector):
    needs = frozenset({"features"})
    statistics = (ClassMoments,)
    reference = PAPER

    def _fit(self, statistics, head):
        self.register_buffer("weight", head.weight.sum(dim=0))

    def _score(self, outputs):
        return outputs.require("features").float() @ self.weight


class CallsHead(UsesHead):
    def _fit(self, statistics, head):
        self.register_buffer("weight", head(statistics[ClassMoments].class_means).sum(dim=0))


class OfNone(UsesHead):
    def _fit(self, statistics, head):
        self.register_buffer("weight", self.reference.code.weight)

    reference = Reference("A first detector", "A. Nonymous", "example", 2024, "https://example.org")


def declares(**attributes):
    return type("Declares", (Largest,), attributes)


def statuses(report):
    return {row.check: row.status for row in report.rows}


def failed(report):
    return {row.check: row.message for row in report.rows if row.status == "failed"}


def whole_report(kind):
    """All checks; the two detectors whose reports are looked at share one start of processes."""
    with peers((OtherName, UsesHead)):
        return check_detector(kind, examples=2)


@pytest.mark.integration
def test_argument_under_another_name_is_reported_and_the_other_checks_run():
    report = whole_report(OtherName)
    assert report.detector == "OtherName(temp=?)"
    assert set(failed(report)) == {"check_declarations", "check_saved"}
    message = "the constructor argument 'temp' is not stored under its own name; write self.temp = temp"
    assert message in failed(report)["check_declarations"]
    assert failed(report)["check_saved"].endswith("same error as in check_declarations")
    assert statuses(report)["check_settings_frozen"] == "passed"  # there is no stored setting to replace


def test_a_constructor_with_any_argument_is_reported():
    found = failed(check_detector(AnyOption, only="declarations"))["check_declarations"]
    assert "the constructor accepts **options; declare each argument by name" in found


def test_processes_that_are_stopped_are_named_with_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "TIMEOUT_S", 0)
    assert launch._run(tmp_path) == "rank 0 was stopped after 0 s; rank 1 was stopped after 0 s"


def test_settings_say_what_is_not_stored_and_repr_never_raises():
    detector = OtherName()
    assert repr(detector) == "OtherName(temp=?)"
    with pytest.raises(InvalidArgumentError, match=r"OtherName\(temp=\?\): the constructor argument 'temp'.*own name"):
        detector.settings  # noqa: B018
    with pytest.raises(InvalidArgumentError, match=r"write self\.temp = temp"):
        detector_to_config(detector)


@pytest.mark.parametrize("use", [check_detector, lambda f: parametrize_with_checks([f]), lambda f: f().is_fitted])
def test_forgotten_super_is_reported(use):
    assert repr(NoSuper()) == "NoSuper()"
    with pytest.raises(InvalidArgumentError, match=r"constructor of NoSuper must call super\(\).__init__\(\) before"):
        use(NoSuper)


def test_forgotten_super_is_reported_at_the_start_of_a_run():
    tests = separated_problem().id
    samples = [Sample(f"{i}", tests.images[i], label=int(tests.labels[i])) for i in range(4)]
    streams = [Stream(n, r, MemorySource(samples)) for n, r in (("val", Role.ID), ("far", Role.OOD))]
    with pytest.raises(InvalidArgumentError, match=r"NoSuper must call super\(\).__init__\(\)"):
        pl.Trainer(
            accelerator="cpu", callbacks=[OODDetection([NoSuper()])], logger=False, enable_progress_bar=False
        ).predict(OODModule(TinyConvNet()), OODDataModule(streams), return_predictions=False)


def a_requirement(detector, facts):
    return ""


MALFORMED = [
    (declares(needs=frozenset({"logit"})), "unknown need 'logit'; did you mean 'logits'? Known: features, head,"),
    (declares(needs="logits"), "needs must be a frozenset of names, such as frozenset({'logits'}), not 'logits'"),
    (NoNeeds, "needs is missing; declare a frozenset of any of these names: features, head,"),
    (declares(statistics=ClassMoments), "statistics must be a tuple of classes, such as (ClassMoments,), not"),
    (declares(statistics=(5,)), "statistics contains 5, which is not a subclass of Statistic"),
    (declares(requirements=a_requirement), "requirements must be a tuple of functions, such as (a_requirement,), not"),
    (declares(layers="pool"), "layers must be a tuple of names, such as ('pool',), not 'pool'"),
    (declares(invariances="logit_shift"), "invariances must be a frozenset of names, not 'logit_shift'"),
]


@pytest.mark.parametrize(("kind", "message"), MALFORMED)
def test_malformed_declarations_fail_their_clause_and_nothing_else_is_run(kind, message):
    report = check_detector(kind, expected_failures={"check_declarations": "no excuse counts"})
    assert not report.passed
    (told,) = failed(report).values()
    assert message in told
    assert "this check cannot be exempted" in told
    assert {s for c, s in statuses(report).items() if c != "check_declarations"} == {"not run"}
    assert str(report).startswith(f"{kind.__name__}(): 0 passed, {len(checks()) - 1} not run, 1 failed\n  failed ")
    assert set(statuses(check_detector(kind, only="half"))) == {"check_declarations", "check_half_precision"}


@pytest.mark.parametrize(("kind", "message"), MALFORMED[:1])
def test_malformed_declarations_are_one_failing_test(kind, message):
    (only,) = parametrize_with_checks([kind]).mark.args[1]
    factory, check = only.values
    assert (only.id, list(only.marks)) == ("declares-check_declarations", [])
    with pytest.raises(ConformanceError, match="unknown need 'logit'"):
        check(factory)


def test_nested_detector_is_looked_at():
    def wraps():
        detector = Largest()
        detector.then = MALFORMED[1][0]()
        return detector

    assert "Declares() inside: needs must be a frozenset" in failed(check_detector(wraps))["check_declarations"]


@pytest.mark.integration
def test_error_of_most_checks_is_reported_once_with_a_hint():
    found = failed(whole_report(UsesHead))
    assert len(found) > 11
    first, *others = found.values()
    assert "found: AttributeError: 'NoneType' object has no attribute 'weight'" in first
    assert "add 'head' to `needs`" in first
    assert all(m.startswith("UsesHead() violates clause '") for m in others)
    assert all(m.endswith(f" with the same error as in {next(iter(found))}") for m in others)


@pytest.mark.parametrize(("kind", "hinted"), [(CallsHead, True), (OfNone, False)])
def test_hint_at_the_head_where_it_is_the_head(kind, hinted):
    with pytest.raises(ConformanceError) as raised:
        checks()["check_higher_is_id"](kind)
    assert ("add 'head' to `needs`" in str(raised.value)) is hinted


def test_exemption_is_reported_for_python():
    class Reversed(Largest):
        def _score(self, outputs):
            return -outputs.max_logits

    message = failed(check_detector(Reversed, only="higher"))["check_higher_is_id"]
    assert (
        "to exempt this check (in Python only): check_detector(..., expected_failures={'check_higher_is_id':" in message
    )
    assert "parametrize_with_checks(..., expected_failures={'reversed': {'check_higher_is_id': 'the" in message


class LooksAtTheBatch(Largest):
    def _score(self, outputs):
        return outputs.max_logits - 0.01 * outputs.max_logits.mean()


class Overflows(Largest):
    def _score(self, outputs):
        least = outputs.require("logits").amin(dim=1)
        return torch.where(least < -9e4, least * torch.inf, outputs.max_logits)


@pytest.mark.parametrize(("kind", "only"), [(LooksAtTheBatch, "batches_in_score"), (Overflows, "finite")])
def test_smallest_example_is_short(kind, only):
    (message,) = failed(check_detector(kind, only=only, examples=50)).values()
    assert "smallest example: " in message
    assert max(map(len, message.splitlines())) < 250, message


@pytest.mark.parametrize("value", [list(range(150))[::-1], [1] * 500, [[1, 2]] * 80, torch.arange(9e4), "x" * 999])
def test_values_are_shortened(value):
    assert len(shorten(value)) < 160
    assert len(shorten((value, value))) < 320
