"""The kit from the outside: reports, exemptions, errors, what is imported when."""

import re
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

import pytest
import torch

from oodlit import testing
from oodlit.detectors import ASH, KNN, MSP, Detector, Energy, Reference, TrainFreeDetector
from oodlit.errors import InvalidArgumentError, MissingExtraError, RequirementError, UnknownNameError
from oodlit.testing import ConformanceError, check_detector, checks, contract, parametrize_with_checks, signed_problem
from oodlit.testing.clauses import clause_of, effort, number_of_examples
from oodlit.testing.conformance import import_factory
from oodlit.testing.problems import import_extra


class Reversed(TrainFreeDetector):
    needs = frozenset({"logits"})
    reference = Reference("Reversed", "A. Nonymous", "example", 2024, "https://example.org")

    def _score(self, outputs):
        return -outputs.max_logits


def not_a_detector():
    return 5


def needs_an_argument(k):
    return KNN(k)


NOT_CALLABLE = 5


def test_every_check_that_is_written_is_found():
    files = Path(contract.__file__).parent.glob("*.py")
    written = [name for file in files for name in re.findall(r"^def (check_\w+)", file.read_text(), re.MULTILINE)]
    assert list(checks()) == sorted(written)
    assert len(written) >= 29
    ids = [clause_of(check).id for check in checks().values()]
    assert len(set(ids)) == len(ids)
    assert all(check.__doc__ for check in checks().values())


def test_checks_are_plain_functions():
    assert checks()["check_higher_is_id"](MSP) is None
    with pytest.raises(
        ConformanceError, match=r"higher-is-id.*\n.*is the sign reversed.*\n.*where: .*\n.*expected_failures"
    ):
        checks()["check_higher_is_id"](Reversed)


def test_report_raises_and_prints():
    report = check_detector(Reversed, only="higher")
    assert not report.passed
    assert str(report).startswith("Reversed(): 0 passed, 1 failed\n  failed            check_higher_is_id  Reversed()")
    with pytest.raises(ConformanceError, match="A higher score means more in-distribution"):
        report.raise_if_failed()


def test_expected_failure_is_excused_and_strict():
    excused = check_detector(Reversed, expected_failures={"check_higher_is_id": "on purpose"}, only="higher")
    assert excused.passed
    assert [(r.status, r.message) for r in excused.rows] == [("expected failure", "on purpose")]
    excused.raise_if_failed()
    stale = check_detector(MSP, expected_failures={"check_higher_is_id": "was broken"}, only="higher")
    assert [r.status for r in stale.rows] == ["unexpected pass"]
    with pytest.raises(
        ConformanceError, match=r"^MSP\(\): check_higher_is_id was expected to fail \(was broken\), but it passes"
    ):
        stale.raise_if_failed()
    idle = check_detector(MSP, expected_failures={"check_refit": "old"}, only="refit")
    with pytest.raises(ConformanceError, match=r"^MSP\(\): check_refit does not apply, .*does not use training images"):
        idle.raise_if_failed()


def test_unknown_check_is_named_with_its_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'check_refit'"):
        check_detector(MSP, expected_failures={"check_refits": "typo"})


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (MSP(), r"got a detector; pass .*MSP\(\)"),
        (not_a_detector, "must return a Detector, got "),
        (needs_an_argument, "can be called without arguments"),
        (Detector, "cannot create a detector: Can't instantiate abstract class Detector"),
    ],
)
def test_what_is_no_factory_is_refused(factory, message):
    with pytest.raises(InvalidArgumentError, match=message):
        check_detector(factory)


def test_inapplicable_detector_is_refused_with_the_reason():
    with pytest.raises(RequirementError, match=r"ASH\(\) does not apply to signed_problem: .*non-negative"):
        check_detector(ASH, problem=signed_problem)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("MPS", "unknown detector 'MPS'; did you mean 'msp'.*own detector, pass a dotted path"),
        ("oodlit.detectors.Nowhere", "cannot be imported.*Nowhere"),
        ("no_such_module.Detector", "cannot be imported.*no_such_module"),
        (f"{__name__}.NOT_CALLABLE", "got int"),
        ("oodlit.detectors.DetectorBase.x", "cannot be imported"),
    ],
)
def test_bad_paths_are_refused(path, message):
    with pytest.raises(InvalidArgumentError, match=message):
        import_factory(path)


def test_names_are_found_as_in_a_run():
    assert [import_factory(name) for name in ("KNN", "knn", "oodlit.detectors.KNN")] == [KNN] * 3


def test_module_in_the_working_directory_is_found(tmp_path, monkeypatch):
    code = (
        "from functools import partial\nfrom oodlit.detectors import Energy\nwarm = partial(Energy, temperature=2.0)\n"
    )
    (tmp_path / "my_own_detector.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert check_detector(import_factory("my_own_detector.warm"), only="higher").detector == "Energy(temperature=2.0)"


def test_effort_is_set_and_put_back():
    before = number_of_examples()
    with effort(examples=3):
        assert number_of_examples() == 3
    assert number_of_examples() == before
    with pytest.raises(InvalidArgumentError, match="examples to be at least 1, got 0"):
        check_detector(MSP, examples=0)


def parameters(*arguments, **options):
    mark = parametrize_with_checks(*arguments, **options).mark
    return {p.id: p for p in mark.args[1]}


def test_pytest_parameters_have_readable_ids():
    found = parameters([MSP, partial(KNN, k=5)])
    assert "msp-check_logit_shift" in found
    assert "msp-check_refit" not in found  # it has nothing to fit
    assert "knn[k=5]-check_refit" in found


def test_pytest_expected_failures_become_strict_xfail():
    found = parameters([Reversed], expected_failures={"reversed": {"check_higher_is_id": "on purpose"}})
    (mark,) = found["reversed-check_higher_is_id"].marks
    assert mark.name == "xfail"
    assert mark.kwargs == {"reason": "on purpose", "strict": True, "raises": ConformanceError}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"expected_failures": {"msb": {}}}, UnknownNameError, "did you mean 'msp'"),
        ({"expected_failures": {"msp": {"check_x": ""}}}, UnknownNameError, "unknown check 'check_x'"),
        (
            {"expected_failures": {"msp": {"check_refit": "r"}}},
            InvalidArgumentError,
            "this check does not apply, .*; remove it from",
        ),
    ],
)
def test_pytest_adapter_refuses_what_it_does_not_know(options, error, message):
    with pytest.raises(error, match=message):
        parametrize_with_checks([MSP], **options)


def test_pytest_adapter_refuses_repeated_names():
    with pytest.raises(InvalidArgumentError, match="two factories create detector 'energy'"):
        parametrize_with_checks([Energy, lambda: Energy()])  # noqa: PLW0108


def run_python(code):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.integration
def test_package_imports_neither_pytest_nor_hypothesis_and_says_in_one_line_where_they_are_missing():
    run_python(
        """
        import sys
        import oodlit, oodlit.detectors, oodlit.testing
        from oodlit.testing import check_detector, checks, separated_problem
        assert not {"pytest", "hypothesis", "pytorch_lightning"} & sys.modules.keys()
        sys.modules["hypothesis"] = sys.modules["pytest"] = None
        from oodlit.detectors import MSP
        from oodlit.errors import MissingExtraError
        from oodlit.testing import parametrize_with_checks
        checks()["check_higher_is_id"](MSP)
        for action in (lambda: parametrize_with_checks([MSP]), lambda: check_detector(MSP, only="batches")):
            try:
                action()
            except MissingExtraError as error:
                assert "pip install 'oodlit[testing]'" in str(error) and len(str(error).splitlines()) == 1, error
            else:
                raise SystemExit("no error")
        """
    )


def test_error_inside_an_extra_is_not_taken_for_its_absence(tmp_path, monkeypatch):
    (tmp_path / "half_installed.py").write_text("import no_such_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        import_extra("half_installed")
    with pytest.raises(MissingExtraError, match=r"oodlit\.testing with never_installed"):
        import_extra("never_installed")


def test_public_names_exist():
    assert set(testing.__all__) <= set(dir(testing))
    assert all(getattr(testing, name) is not None for name in testing.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        testing.nonsense  # noqa: B018


def test_smallest_example_is_in_the_message():
    class Shifts(Reversed):
        invariances = frozenset({"logit_shift"})

    with pytest.raises(ConformanceError, match=r"smallest example: shifts=tensor of shape \(60, 1\): all 1\n"):
        checks()["check_logit_shift"](Shifts)


def test_global_random_numbers_are_left_alone():
    before = torch.get_rng_state()
    check_detector(MSP, only="batches")
    assert torch.equal(before, torch.get_rng_state())
