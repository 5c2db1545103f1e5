"""`oodlit evaluate --logger`: one word, or a class; what is missing is said before the run."""

from pathlib import Path

import pytest
import yaml
from pytorch_lightning.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger

from oodlit.cli.main import main
from oodlit.cli.running import loggers
from oodlit.errors import MissingExtraError

RUN = """
backbone: test_resnet.r160_in1k
weights: none
accelerator: cpu
data:
  class_path: DigitsBenchmark
  init_args: {{per_test: 2, root: {root}/digits}}
detectors: [MSP]
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def config(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(RUN.format(root=root))
    return "run.yaml"


@pytest.mark.filterwarnings("ignore:.*undefined .NaN.", "ignore::oodlit.results.FindingWarning")
def test_words_and_classes_together(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--logger", "csv", "--logger", "tensorboard", "--logger.name", "tb"]
    by_class = ["--logger", "pytorch_lightning.loggers.CSVLogger", "--logger.save_dir", "own"]
    assert main(["evaluate", "--config", config, *words, *by_class, "--max_batches", "1", "--num_workers", "0"]) == 0
    capsys.readouterr()
    assert (tmp_path / "oodlit-logs" / "csv" / "version_0" / "summary.csv").is_file()
    assert next((tmp_path / "oodlit-logs" / "tb" / "version_0").glob("events.*"))
    (settings,) = (tmp_path / "own").rglob("hparams.yaml")
    assert yaml.safe_load(settings.read_text())["backbone/name"] == "test_resnet.r160_in1k"
    resolved = yaml.safe_load((tmp_path / "oodlit-results" / "run.json").read_text())["config"]
    assert [entry["class_path"] for entry in yaml.safe_load(resolved)["logger"]] == [
        "oodlit.cli.running.loggers.csv",
        "oodlit.cli.running.loggers.tensorboard",
        "pytorch_lightning.loggers.CSVLogger",
    ]


def test_a_logger_that_fails_leaves_results_and_table(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    words = ["evaluate", "--config", config, "--logger", "csv", "--max_batches", "1", "--num_workers", "0"]
    with monkeypatch.context() as patch:
        patch.setattr(CSVLogger, "log_metrics", full)
        assert main(words) == 1
    told = capsys.readouterr()
    assert "parts of the run could not be logged: CSVLogger (number 1 of 1), values:" in told.err
    assert "detector" in told.out
    assert (tmp_path / "oodlit-results" / "table.csv").is_file()
    # The run is not repeated, and what could not be logged then is logged now.
    assert main(words) == 0
    assert "pass --again to repeat it" in " ".join(capsys.readouterr().out.split())
    (summary,) = (tmp_path / "oodlit-logs").rglob("summary.csv")
    assert (summary.parent / "metrics.csv").is_file()
    assert list((summary.parent / "figures").rglob("*.png"))


def test_a_word_in_the_file(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Path(config).open("a") as file:
        file.write("logger: mlflow\n")
    assert main(["evaluate", "--config", config, "--logger.experiment", "ninco", "--print_config"]) == 0
    entry = yaml.safe_load(capsys.readouterr().out)["logger"]
    assert entry["class_path"] == "oodlit.cli.running.loggers.mlflow"
    assert entry["init_args"]["experiment"] == "ninco"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--logger", "tensorbord"], "unknown logger 'tensorbord'; did you mean 'tensorboard'?"),
        (
            ["--logger", "wandb", "--logger.projekt", "x"],
            "unknown argument 'projekt' of oodlit.cli.running.loggers.wandb",
        ),
        (["--logger", "MSP"], "expected Logger, got oodlit.detectors.MSP"),
    ],
)
def test_wrong_words_are_reported(
    config: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "--config", config, *words]) == 2
    assert message in capsys.readouterr().err


def test_what_the_words_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    assert isinstance(loggers.csv(), CSVLogger)
    assert isinstance(loggers.tensorboard("logs"), TensorBoardLogger)
    assert isinstance(made := loggers.mlflow(), MLFlowLogger)
    assert made._tracking_uri == (tmp_path / "store").as_uri()
    assert isinstance(made := loggers.wandb(), WandbLogger)
    assert made.save_dir == "oodlit-logs"
    assert (tmp_path / "oodlit-logs").is_dir()


@pytest.mark.parametrize("word", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_is_reported_with_its_pip_line(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loggers, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=rf"--logger {word} requires .*: pip install {word}"):
        getattr(loggers, word)()
