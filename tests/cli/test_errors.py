"""Every mistake in a configuration is reported in one line: names, types, imports, constructors."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oodlit.cli.main import COMMANDS, main
from oodlit.errors import InvalidArgumentError

MODULE = """
from torch import nn

LIMIT = 3

class Net(nn.Module):
    def __init__(self, width: int = 4, depth=1):
        super().__init__()
        if depth == 0:
            raise ValueError("depth must be\\n positive")
        if depth == 2:
            raise RuntimeError("no memory")

class Open(Net):
    def __init__(self, extra: float = 1.0, **others):
        super().__init__(**others)

def number():
    return 3

def anything(**given):
    raise ValueError(str(given))
"""

FILE = """
backbone: test_resnet.r160_in1k
weights: none
accelerator: cpu
data: {class_path: DigitsBenchmark, init_args: {per_test: 2}}
detectors: [MSP]
"""

MODULES = ("own_of_errors", "broken_of_errors", "lacking_of_errors")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    for name, text in zip(MODULES, (MODULE, "raise OSError('boom')", "import nothing_of_errors"), strict=True):
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "run.yaml").write_text(FILE)
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


STREAMS = "--data={class_path: OODDataModule, init_args: {streams: %s}}"
STREAM = STREAMS % "[{class_path: shard_stream, init_args: {shards: s, %s}}]"
KNN = "--detectors=[MSP, {class_path: KNN, init_args: %s}]"
REACT = "--detectors=[{class_path: ReAct, init_args: {then: %s}}]"
NET = "--backbone={class_path: own_of_errors.Net, init_args: %s}"
ABSENT = "; install the package that contains it, or add the folder that contains it to PYTHONPATH"
HELP = " (see 'oodlit evaluate --help')"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        # constructors of oodlit: their own line
        (KNN % "{k: 0}", "KNN: expected k to be at least 1, got 0"),
        (
            REACT % "{class_path: Energy, init_args: {temperature: -1}}",
            "Energy: expected temperature to be a positive, finite number, got -1.0",
        ),
        (STREAM % "cache: {attempts: 0}", "Cache: expected attempts to be at least 1, got 0"),
        (
            STREAMS % "[]",
            "streams: expected exactly one stream with role 'id', got none; every metric compares other images with"
            " one set of in-distribution images",
        ),
        # constructors of others: class, kind of error, message
        (NET % "{depth: 0}", "own_of_errors.Net: ValueError: depth must be positive"),
        (NET % "{depth: 2}", "own_of_errors.Net: RuntimeError: no memory"),
        (
            "--backbone={class_path: OODModule, init_args: {backbone: " + NET.partition("=")[2] % "{depth: 0}" + "}}",
            "own_of_errors.Net: ValueError: depth must be positive",
        ),
        (
            "--backbone={class_path: own_of_errors.Open, init_args: {depth: 0}}",
            "own_of_errors.Open: ValueError: depth must be positive",
        ),
        (
            "--backbone={class_path: own_of_errors.anything, dict_kwargs: {width: 3}}",
            "own_of_errors.anything: ValueError: {'width': 3}",
        ),
        (
            "--backbone={class_path: own_of_errors.number}",
            "own_of_errors.number must return an object of class Module, got 3",
        ),
        # unknown names at every depth
        (KNN % "{kk: 1}", "unknown argument 'kk' of oodlit.detectors.KNN; did you mean 'k'? Known: bank_size, k"),
        (
            REACT % "{class_path: Energy, init_args: {temprature: 1}}",
            "unknown argument 'temprature' of oodlit.detectors.Energy; did you mean 'temperature'? Known: temperature",
        ),
        (
            STREAM % "cache: {atempts: 0}",
            "unknown argument 'atempts' of oodlit.datamodules.shards.remote.Cache; did you mean 'attempts' or"
            " 'timeout_s' or 'max_bytes'? Known: attempts, backoff_s, folder, max_bytes, storage_options, timeout_s",
        ),
        (
            "--backbone={class_path: own_of_errors.Open, init_args: {dept: 0}}",
            "unknown argument 'dept' of own_of_errors.Open; did you mean 'depth'? Known: depth, extra, width",
        ),
        (
            "--detectors=[{class_path: MSP, init_args: {temperature: 1}}]",
            "oodlit.detectors.MSP accepts no arguments, got 'temperature'",
        ),
        (
            "--detectors=[{class_path: KNN, init_arg: {k: 1}}]",
            "unknown key 'init_arg' beside class_path KNN; did you mean 'init_args' or 'dict_kwargs'?"
            " Known: class_path, dict_kwargs, init_args",
        ),
        (STREAM % "role: odd", "unknown role 'odd'; did you mean 'ood'? Known: id, ood, pool, shift, train, unit_test"),
        (
            "--data=DigitBenchmark",
            "unknown data class 'DigitBenchmark'; did you mean 'DigitsBenchmark' or 'DigitPoolBenchmark' or"
            " 'Benchmark'? Known: Benchmark, DigitPoolBenchmark, DigitsBenchmark, ImageNetBenchmark, OODDataModule,"
            " PhotosBenchmark",
        ),
        (
            STREAMS % "[shard_strem]",
            "unknown class or function 'shard_strem'; did you mean 'shard_stream' or 'set_stream' or"
            " 'corrupted_stream'? Known: Stream, corrupted_stream, folder_stream, pipeline_stream, pooled_stream,"
            " set_stream, severity_pool, shard_stream, unit_test_stream",
        ),
        # what cannot be imported
        (
            "--backbone={class_path: own_of_errors.Nett}",
            "--backbone: cannot import own_of_errors.Nett (module 'own_of_errors' has no attribute 'Nett')" + HELP,
        ),
        (
            "--backbone={class_path: own_of_erors.Net}",
            "--backbone: cannot import own_of_erors.Net (No module named 'own_of_erors')" + ABSENT + HELP,
        ),
        (
            "--backbone={class_path: broken_of_errors.Net}",
            "--backbone: cannot import broken_of_errors.Net (OSError: boom)" + HELP,
        ),
        (
            "--detectors=[lacking_of_errors.Mine]",
            "--detectors[0]: cannot import lacking_of_errors.Mine (No module named 'nothing_of_errors')"
            + ABSENT
            + HELP,
        ),
        (
            "--backbone={class_path: own_of_errors.LIMIT}",
            "--backbone: expected own_of_errors.LIMIT to be a class or a function, got int" + HELP,
        ),
        # the wrong class, the wrong type
        ("--detectors=[own_of_errors.Net]", "--detectors[0]: expected Detector, got own_of_errors.Net" + HELP),
        (
            REACT % "DigitsBenchmark",
            "--detectors[0].then: expected Detector, got oodlit.datamodules.DigitsBenchmark" + HELP,
        ),
        (KNN % "{k: x}", "--detectors[1].k: expected int, got x" + HELP),
        (KNN % "3", "--detectors[1]: init_args of oodlit.detectors.KNN must map names to values, got 3" + HELP),
        (NET % "{width: [1]}", "--backbone.width: expected int, got [1]" + HELP),
        (
            STREAM % "damaged: never",
            "--data.streams[0].damaged: invalid value never; choose one of 'raise', 'mark'" + HELP,
        ),
        (
            "--data={class_path: OODDataModule}",
            "--data: oodlit.datamodules.OODDataModule is missing init_args: streams" + HELP,
        ),
        ("--data.per_test=1.5", "--data.per_test: expected int, got 1.5" + HELP),
        (
            "--data.transform=math.nope",
            "--data.transform: cannot import math.nope (module 'math' has no attribute 'nope')" + HELP,
        ),
        ("--detectors={a: 1}", "--detectors.a: expected class_path and init_args, got 1" + HELP),
        ("--detectors=[3]", "--detectors[0]: expected class_path and init_args, got 3" + HELP),
        ("--detectors=[{class_path: 3}]", "--detectors[0]: class_path must be the name of a class, got 3" + HELP),
        ("--devices", "--devices requires a value" + HELP),
        ("word", "unexpected argument: word" + HELP),
    ],
)
def test_one_line_and_no_more(option: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    failed = 1 if "no memory" in message else 2
    assert main(["evaluate", "--config", "run.yaml", option]) == failed
    told = capsys.readouterr()
    assert told.err == f"oodlit evaluate: error: {message}\n"
    assert told.out == ""
    assert len(told.err) < 350


def test_unknown_detectors_get_the_nearest_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--config", "run.yaml", REACT % "Enrgy"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        "oodlit evaluate: error: unknown detector 'Enrgy'; did you mean 'Energy' or 'Entropy'? Known:"
    )
    assert " Detector," not in error, "abstract classes are no choice"
    assert error.count("\n") == 1


def test_a_folder_that_is_missing_is_reported_by_the_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    """The same line as in Python; missing data is no mistake of the command line."""
    option = "--data={class_path: ImageNetBenchmark, init_args: {root: nowhere, sets: [ninco]}}"
    assert main(["evaluate", "--config", "run.yaml", option]) == 1
    error = capsys.readouterr().err
    assert error.startswith(
        "oodlit evaluate: error: nowhere/imagenet_val (ImageNet-1k, validation images) does not exist"
    )
    assert error.count("\n") == 1


def test_the_cause_is_kept_for_debugging(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--config", "run.yaml", NET % "{depth: 0}", "--debug"]) == 2
    error = capsys.readouterr().err
    assert "own_of_errors.py" in error
    assert InvalidArgumentError.__name__ in error


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "--config: other.yaml must map options to values"),
        ("a: [", "--config: other.yaml is not valid YAML: while parsing a flow node"),
        ("zapp: 1", "unknown option 'zapp'"),
    ],
)
def test_files_that_are_no_configuration(text: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("other.yaml").write_text(text)
    assert main(["evaluate", "--config", "other.yaml"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"oodlit evaluate: error: {message}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "path"),
    [
        ("--detectors=[{class_path: os.system, init_args: {command: 'touch SEEN'}}]", "os.system"),
        ("--data={class_path: os.system, init_args: {command: 'touch SEEN'}}", "os.system"),
        ("--backbone={class_path: subprocess.Popen, init_args: {args: 'touch SEEN', shell: true}}", "subprocess.Popen"),
        ("--backbone={class_path: os.popen, init_args: {cmd: 'touch SEEN'}}", "os.popen"),
    ],
)
def test_only_a_subclass_of_the_requested_type_is_called(
    option: str, path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A configuration is trusted, but only what the place asks for is called where that can be known."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(FILE)
    assert main(["evaluate", "--config", "run.yaml", "--out", str(tmp_path / "out"), option]) == 2
    assert path in capsys.readouterr().err
    assert not (tmp_path / "SEEN").exists()


def test_warnings_are_one_line_like_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        "import sys, warnings\n"
        "def command() -> None:\n"
        "    sys.stderr.write(warnings.formatwarning('no\\n colours', UserWarning, 'place.py', 7))\n"
    )
    (tmp_path / "command_that_warns.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(COMMANDS, "warn", "command_that_warns:command")
    assert main(["warn"]) == 0
    assert capsys.readouterr().err == "oodlit warn: warning: no colours\n"
    assert main(["warn", "--debug"]) == 0
    assert "place.py:7: UserWarning: no\n colours" in capsys.readouterr().err
