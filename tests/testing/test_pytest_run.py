"""The plugin of pytest, run by pytest: pass, fail, a missing run, wrong limits, and nothing where it is unused."""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from msgspec import structs

from oodlit import Results, Role, datamodules, detectors
from oodlit.results import DatasetInfo, UnfinishedRunWarning
from oodlit.results.files import unfinished
from oodlit.testing import pytest_run

pytest_plugins = ["pytester"]
# A run of pytest within this one forgets what it imports: what is there before stays, and classes are the same ones.
LOADED = (pytest_run, datamodules.DigitsBenchmark, datamodules.MemorySource, detectors.MSP)
pd.DataFrame({"a": [1]}).to_parquet()  # pandas and pyarrow register types at the first file, and once only
PLUGIN = () if any(e.value == "oodlit_pytest" for e in entry_points(group="pytest11")) else ("-p", "oodlit_pytest")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run in which one of two unit tests fails."""
    parts = [("val", -1, np.arange(20.0)), ("tests", 0, np.full(4, -1.0)), ("tests", 1, np.array([-1.0, 19.0]))]
    rows = [
        {"key": f"{name}/{group}-{i}", "dataset": name, "group": group, "label": 0 if name == "val" else -1,
         "prediction": i % 2, "msp": score}
        for name, group, scores in parts
        for i, score in enumerate(scores)
    ]  # fmt: skip
    datasets = [DatasetInfo("val", Role.ID), DatasetInfo("tests", Role.UNIT_TEST, ("black", "white"))]
    Results.from_scores(pd.DataFrame(rows), datasets, ["msp"], bootstrap=0).save(tmp_path / "saved")
    return tmp_path / "saved"


def test_unit_tests_and_limits_are_tests(pytester: pytest.Pytester, folder: Path) -> None:
    pytester.makefile(".yaml", limits="fail_if:\n- msp: unit_test_failures > 1\n- model: accuracy < 0.6\n")
    done = pytester.runpytest(*PLUGIN, "-v", "--oodlit-run", folder, "--oodlit-limits", "limits.yaml")
    done.assert_outcomes(passed=2, failed=2)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines_random([
        "*oodlit?saved?::msp-black PASSED*",
        "*oodlit?saved?::msp-white FAILED*",
        "*oodlit?saved?::msp: unit_test_failures > 1 PASSED*",
        "msp: fpr95 on tests/white is 50 % ?9.453, 90.55? ?fails if > 10%?; accepted images: tests/1-1",
        "model: accuracy on val is 50 % *fails if < 60%?; misclassified images: val/-1-1, *",
    ])  # fmt: skip
    assert "Traceback" not in done.stdout.str()


def test_they_can_be_chosen_and_pass(pytester: pytest.Pytester, folder: Path) -> None:
    done = pytester.runpytest(*PLUGIN, "-k", "black", "--oodlit-run", folder)
    done.assert_outcomes(passed=1, deselected=1)
    assert done.ret == pytest.ExitCode.OK


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ("fail_if: ['mps: fpr95 > 0']", "*limit*: unknown detector 'mps'; did you mean 'msp'*"),
        ("fail_if: [what]", "*limit 'what': expected 'DETECTOR: METRIC*"),
        ("nothing: 1", "ERROR: oodlit: the limits file limits.yaml must contain one list named fail_if*"),
    ],
)
def test_wrong_limits_are_a_usage_error(pytester: pytest.Pytester, folder: Path, limits: str, message: str) -> None:
    pytester.makefile(".yaml", limits=limits)
    done = pytester.runpytest(*PLUGIN, "--oodlit-run", folder, "--oodlit-limits", "limits.yaml")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([message])


def test_a_run_that_was_interrupted_fails_unless_it_is_allowed(pytester: pytest.Pytester, folder: Path) -> None:
    results = Results.load(folder)
    unfinished.begin(folder.parent / "killed" / "unfinished", structs.replace(results.run, processes=1))
    unfinished.write_part(folder.parent / "killed" / "unfinished", 0, 0, results.images("val"))
    pytester.makefile(".yaml", limits="fail_if:\n- model: accuracy < 0.1\n")
    call = (*PLUGIN, "--oodlit-run", folder.parent / "killed", "--oodlit-limits", "limits.yaml")
    done = pytester.runpytest(*call)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["ERROR: oodlit: *the run was interrupted; missing data sets: tests*"])
    with pytest.warns(UnfinishedRunWarning):
        done = pytester.runpytest(*call, "--oodlit-allow-unfinished")
    done.assert_outcomes(passed=1)


def test_a_missing_run_is_a_usage_error(pytester: pytest.Pytester) -> None:
    done = pytester.runpytest(*PLUGIN, "--oodlit-run", "nowhere")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["ERROR: oodlit: nowhere: *does not exist*"])
    pytester.makefile(".yaml", limits="fail_if: ['msp: fpr95 > 0']")
    done = pytester.runpytest(*PLUGIN, "--oodlit-limits", "limits.yaml")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*requires --oodlit-run DIR*"])


def test_unused_it_costs_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing_is_imported():
            assert "oodlit_pytest" in sys.modules
            assert not {"oodlit", "torch", "pandas"} & set(sys.modules)
        """
    )
    done = pytester.runpytest_subprocess(*PLUGIN, "-p", "no:jaxtyping", "-p", "no:hypothesispytest")
    done.assert_outcomes(passed=1)


def test_results_within_a_test(pytester: pytest.Pytester, folder: Path) -> None:
    pytester.makepyfile(
        """
        from oodlit.results import crossings

        def test_results(oodlit_results):
            assert oodlit_results.detectors == ("msp",)
            assert not crossings(oodlit_results, ["msp: unit_test_failures > 1"])
        """
    )
    pytester.runpytest(*PLUGIN).assert_outcomes(skipped=1)
    pytester.runpytest(*PLUGIN, "-k", "test_results", "--oodlit-run", folder).assert_outcomes(passed=1, deselected=2)


def test_a_model_is_run_within_a_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import warnings

        from PIL import Image
        from torchvision.transforms import ToTensor

        from oodlit import Role
        from oodlit.datamodules import MemorySource, OODDataModule, Sample, Stream
        from oodlit.detectors import MSP
        from torch import nn

        def test_own_model(oodlit_evaluate):
            samples = [Sample(str(i), Image.effect_noise((8, 8), 40 + i).convert("RGB"), label=i % 2) for i in range(8)]
            data = OODDataModule([Stream("val", Role.ID, MemorySource(samples))], transform=ToTensor(), unit_tests=3)
            network = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                results = oodlit_evaluate(network, data, [MSP()])
            assert results.run.counts == {"val": 8, "unit_tests": 51}
            assert 0 <= results.value("unit_test_failures", dataset="unit_tests", detector="msp") <= 17
        """
    )
    pytester.runpytest(*PLUGIN).assert_outcomes(passed=1)


@pytest.mark.integration
def test_asserts_of_the_package_may_be_rewritten(pytester: pytest.Pytester) -> None:
    """As pytest does with every package that an installed plugin comes with."""
    pytester.makeconftest("import pytest\npytest.register_assert_rewrite('oodlit')\n")
    pytester.makepyfile(
        """
        import oodlit.metrics

        def test_names_are_found():
            assert type(oodlit.__loader__).__name__ == "AssertionRewritingHook"
            assert "Gate" in oodlit.__all__ and oodlit.Results.__name__ == "Results"
        """
    )
    done = pytester.runpytest_subprocess("-p", "no:jaxtyping", "-p", "no:hypothesispytest")
    done.assert_outcomes(passed=1)


def test_the_module_stands_outside_of_the_package() -> None:
    code = "import oodlit_pytest, sys; print(sorted({'oodlit', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
