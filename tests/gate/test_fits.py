"""A threshold belongs to one fit: a gate refuses another one, and a run with another one is another run."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from oodlit import Gate, OODModule, Results
from oodlit.callbacks import OODDetection
from oodlit.datamodules import OODDataModule
from oodlit.detectors import Detector, Mahalanobis, load, save
from oodlit.errors import FingerprintError, RunIsCompleteError, UnknownNameError
from tests.gate.support import TinyNetwork, digits, predict, run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> OODDataModule:
    return digits(tmp_path_factory.mktemp("shards"))


@pytest.fixture(scope="module")
def first(data: OODDataModule, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fits") / "first"
    run(OODModule(TinyNetwork(), transform=data.transform), data, [Mahalanobis()], folder)
    return folder


def replace_fit(folder: Path) -> None:
    """Save another fit of the same network in place of the first."""
    fitted, origin = load(folder)
    save({"mahalanobis": moved(fitted["mahalanobis"])}, folder, origin)


def moved(detector: Detector) -> Detector:
    for value in detector.buffers():
        if value.is_floating_point():
            value.add_(1)
    return detector


def score_again(data: OODDataModule, fit: Path | dict[str, Detector], out: Path) -> Results:
    """Score the test images with an earlier fit."""
    tests = OODDataModule(
        [stream for stream in data.streams if stream.name != "digits_train"], transform=data.transform, batch_size=64
    )
    given = {"fitted": fit} if isinstance(fit, Path) else {"detectors": fit}
    detection = OODDetection(**given, output_dir=out, num_thumbnails=0, resume=True)
    predict(OODModule(TinyNetwork(), transform=data.transform), tests, detection)
    assert detection.results is not None
    return detection.results


@pytest.mark.parametrize("which", ["run", "run with an earlier fit", "saved gate"])
def test_a_gate_refuses_a_fit_that_was_replaced(first: Path, data: OODDataModule, tmp_path: Path, which: str) -> None:
    folder = shutil.copytree(first, tmp_path / "first")
    fit = folder / "fitted"
    if which == "run with an earlier fit":
        score_again(data, fit, folder := tmp_path / "again")
    if which == "saved gate":
        Gate.load(first, model=TinyNetwork()).save(folder := tmp_path / "gate")
        fit = folder / "fitted"
    assert Gate.load(folder, model=TinyNetwork())(torch.zeros(1, 3, 8, 8))
    replace_fit(fit)
    with pytest.raises(FingerprintError, match="fitted: the fit has changed since the threshold") as caught:
        Gate.load(folder, model=TinyNetwork())
    way_out = "load the folder of the run and save" if which == "saved gate" else "evaluate again .pass fitted=FOLDER"
    assert re.search(way_out, str(caught.value))


def test_a_fit_without_the_detector_of_the_run_is_named(first: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(first, tmp_path / "run")
    record = json.loads((folder / "run.json").read_text())
    record |= {"fitted_from": "earlier_fit", "started_in": str(tmp_path), "fit_digest": ""}
    (folder / "run.json").write_text(json.dumps(record))
    fitted, origin = load(folder / "fitted")
    save({"other": fitted["mahalanobis"]}, tmp_path / "earlier_fit", origin)
    with pytest.raises(UnknownNameError, match=re.escape(f"'mahalanobis' in {tmp_path / 'earlier_fit'}")):
        Gate.load(folder, model=TinyNetwork())


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_run_with_another_fit_is_another_run(
    first: Path, data: OODDataModule, tmp_path: Path, in_memory: bool
) -> None:
    fit = shutil.copytree(first / "fitted", tmp_path / "fit")

    def again() -> Results:
        return score_again(data, load(fit)[0] if in_memory else fit, tmp_path / "out")

    before = again()
    with pytest.raises(RunIsCompleteError):
        again()
    replace_fit(fit)
    assert (again().scores["mahalanobis"] != before.scores["mahalanobis"]).any()


def test_runs_of_earlier_versions_do_not_know_their_fit(first: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(first, tmp_path / "run")
    text = (folder / "run.json").read_text()
    digest = Results.load(folder).run.fit_digest
    assert len(digest) == 32
    (folder / "run.json").write_text(text.replace(digest, ""))
    replace_fit(folder / "fitted")
    assert Gate.load(folder, model=TinyNetwork()).threshold
