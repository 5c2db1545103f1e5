"""One run with every logger that takes more than values, read back from what each has written."""

import json
import string
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pytorch_lightning.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger

from oodlit import Role
from oodlit.detectors import KNN, MSP
from oodlit.results.names import distinct
from oodlit.runs.loggers import RunLog, log_to_all, settings_of
from oodlit.runs.loggers.mlflow import BATCH, mlflow_names
from tests.callbacks.logs import wandb_run
from tests.callbacks.support import Recorder, predict, stream

pytestmark = pytest.mark.filterwarnings("ignore:.*undefined .NaN.", "ignore::oodlit.results.FindingWarning")

QUIET = {
    "MLFLOW_ALLOW_FILE_STORE": "true",  # the strictest of its stores: a file for every name
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
}
FIGURES = ["fpr_per_class/far_off", "score_histograms/far_off"]


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    root = tmp_path_factory.mktemp("loggers")
    streams = [
        stream("train: 1", Role.TRAIN, 12),
        stream("val: 1", Role.ID, 6),
        stream("far off", Role.OOD, names=("a/b", "a:b"), group=0),  # equal names, but for what cannot be written
        stream("..", Role.SHIFT, 6, names=("blur", "noise"), group=0),
    ]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUIET.items():
            patch.setenv(name, value)
        recorder = Recorder()
        mlflow = MLFlowLogger("oodlit", tracking_uri=(root / "mlruns").as_uri())
        wandb = WandbLogger("run", project="oodlit", save_dir=root, offline=True)
        tensorboard, files = TensorBoardLogger(root, name="tensorboard"), CSVLogger(root, name="csv")
        loggers = [recorder, tensorboard, wandb, mlflow, files]
        detectors = {"my knn: k=3/x": KNN(k=3), "my knn; k=3/x": KNN(k=2), "msp": MSP()}
        results = predict(detectors, streams, trainer={"logger": loggers}).results
        wandb.experiment.finish()
        yield SimpleNamespace(root=root, results=results, recorder=recorder, loggers=loggers, mlflow=mlflow)


def _same(found: dict[str, float], expected: dict[str, float]) -> None:
    assert found.keys() >= expected.keys()
    np.testing.assert_allclose([float(found[name]) for name in expected], list(expected.values()), rtol=1e-6)


def test_any_logger_gets_values_and_settings(logged) -> None:
    recorder, results = logged.recorder, logged.results
    ((values, step),) = recorder.logged
    _same(values, results.metrics_by_name())
    assert step == 0
    assert len(values) == len(results.table)
    (settings,) = recorder.settings
    assert settings == settings_of(results.run)
    assert settings["backbone/name"] == "tiny"
    assert settings["backbone/transform"] == "None"
    assert settings["detectors/my_knn_k_3_x/class"] == "oodlit.detectors.KNN"
    assert (settings["detectors/my_knn_k_3_x/k"], settings["detectors/my_knn_k_3_x/k_2"]) == (3, 2)
    assert settings["evaluation/tpr"] == 0.95
    assert settings["data/far_off/images"] == 4
    assert settings["versions/torch"] == results.run.versions["torch"]
    assert all(isinstance(value, (str, int, float)) and len(str(value)) <= 250 for value in settings.values())


def test_tensorboard(logged) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    events = EventAccumulator(logged.loggers[1].log_dir, size_guidance={"scalars": 0})
    events.Reload()
    scalars = {name: events.Scalars(name)[-1].value for name in events.Tags()["scalars"]}
    _same(scalars, logged.results.metrics_by_name())
    (text,) = events.Tensors("summary/text_summary")
    assert text.tensor_proto.string_val[0].decode() == logged.results.to_markdown()
    assert sorted(events.Tags()["images"]) == [f"figures/{name}" for name in FIGURES]
    (image,) = events.Images("figures/fpr_per_class/far_off")
    assert min(image.width, image.height) > 100
    start = HParamsPluginData.FromString(
        events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    ).session_start_info
    assert start.hparams["detectors/my_knn_k_3_x/k"].number_value == 3
    assert start.hparams["backbone/name"].string_value == "tiny"
    info = HParamsPluginData.FromString(events.SummaryMetadata("_hparams_/experiment").plugin_data.content)
    beside = {metric.name.tag for metric in info.experiment.metric_infos}
    assert "far_off/msp/mean_fpr95" in beside
    assert len(beside) == logged.results.summary().size


def test_wandb(logged) -> None:
    values, config = wandb_run(logged.root / "wandb")
    _same(values, logged.results.metrics_by_name())
    settings = settings_of(logged.results.run)
    assert {name: config[name] for name in settings} == settings
    (folder,) = (logged.root / "wandb").glob("offline-run-*/files")
    table = json.loads((folder / values["summary/path"]).read_text())
    assert table["columns"] == ["detector", *("/".join(column) for column in logged.results.summary().columns)]
    assert [row[0] for row in table["data"]] == list(logged.results.detectors)
    for name in FIGURES:
        (found,) = values[f"figures/{name}/filenames"]
        with Image.open(folder / found) as picture:
            assert min(picture.size) > 100


def test_mlflow(logged) -> None:
    client, run_id = logged.mlflow.experiment, logged.mlflow.run_id
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    values = logged.results.metrics_by_name()
    assert "../model/accuracy" in values
    assert "../model/accuracy/blur" in values
    _same(run.data.metrics, dict(zip(mlflow_names(list(values)), values.values(), strict=True)))
    assert len(run.data.metrics) == len(values)
    assert "__/model/accuracy/all" in run.data.metrics
    settings = settings_of(logged.results.run)
    named = dict(zip(mlflow_names(list(settings)), settings.values(), strict=True))
    assert run.data.params == {name: str(value) for name, value in named.items()}
    table = client.load_table(logged.mlflow.experiment_id, "summary.json", [run_id])
    assert table["detector"].tolist() == list(logged.results.detectors)
    np.testing.assert_allclose(table.iloc[:, 1:].to_numpy(float), logged.results.summary().to_numpy())
    found = [
        file.path
        for part in ("fpr_per_class", "score_histograms")
        for file in client.list_artifacts(run_id, f"figures/{part}")
    ]
    assert found == [f"figures/{name}.png" for name in FIGURES]


def test_csv(logged) -> None:
    folder = Path(logged.loggers[4].log_dir)
    _same(pd.read_csv(folder / "metrics.csv").iloc[0].to_dict(), logged.results.metrics_by_name())
    assert yaml.safe_load((folder / "hparams.yaml").read_text()) == settings_of(logged.results.run)
    summary = pd.read_csv(folder / "summary.csv", index_col="detector")
    np.testing.assert_allclose(summary.to_numpy(), logged.results.summary().to_numpy())
    assert sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*.png")) == [
        f"figures/{name}.png" for name in FIGURES
    ]


def test_mlflow_takes_more_values_than_one_call_may_have(logged, monkeypatch) -> None:
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    logger = MLFlowLogger("many", tracking_uri=(logged.root / "mlruns").as_uri())
    values = {f"far/{number}": float(number) for number in range(BATCH + 1)}
    log_to_all([logger], RunLog(values, {}))
    assert logger.experiment.get_run(logger.run_id).data.metrics == values


PARTS = st.one_of(
    st.sampled_from(["far", "Far", "all", "all_2", ".", "..", "_", "-"]),
    st.text(string.ascii_letters + string.digits + "_.-", min_size=1, max_size=260),
)
NAMES = st.lists(st.lists(PARTS, min_size=1, max_size=4).map("/".join), max_size=12, unique=True)


@given(NAMES)
def test_names_for_mlflow_are_distinct_and_allowed(names: list[str]) -> None:
    """By MLflow's own rules, as values of their own in a store that has a file for each, upper and lower case alike."""
    from mlflow.utils.validation import _validate_metric_name, _validate_param_name

    found = mlflow_names(names)
    for name in found:
        _validate_metric_name(name)
        _validate_param_name(name)
    files = {name.casefold() for name in found}
    assert len(files) == len(names)
    assert not [name for name in files if any(other.startswith(f"{name}/") for other in files)]
    assert mlflow_names(names) == found


@given(st.lists(st.text("ab_2", min_size=1, max_size=4), max_size=30))
def test_distinct_names_are_distinct(names: list[str]) -> None:
    found = distinct(names)
    assert len(set(found)) == len(names)
    assert all(new == old or new.startswith(f"{old}_") for new, old in zip(found, names, strict=True))
    if len(set(names)) == len(names):
        assert found == names
