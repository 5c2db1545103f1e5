"""Features of the images on the page: neighbors and map against plain loops, keys for any order, and a whole run."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oodlit.base.outputs import Outputs
from oodlit.datamodules.sources import MemorySource
from oodlit.datamodules.stream import Sample, Stream
from oodlit.detectors import KNN, MSP
from oodlit.detectors.statistics import TrainSample
from oodlit.report import clear_thumbnails
from oodlit.results.files.image_features import read_features
from oodlit.roles import Role
from oodlit.runs.images import nearest_training
from oodlit.runs.images.nearest_training import TrainingKeys, image_features
from tests.callbacks.support import OOD_CLASSES, make_module, make_streams, run


def sample_of(features: np.ndarray, keys: list[str]) -> tuple[TrainSample, TrainingKeys]:
    sample, known = TrainSample(fields=("features",)), TrainingKeys()
    labels = torch.arange(len(keys)) % 3
    sample.update(Outputs(features=torch.tensor(features), labels=labels, keys=keys))
    known.add(keys)
    return sample, known


def test_neighbors_are_those_of_a_plain_loop():
    rng = np.random.default_rng(0)
    train, query = rng.normal(size=(40, 6)).astype(np.float32), rng.normal(size=(4, 6)).astype(np.float32)
    keys = [f"train/{i}" for i in range(40)]
    found = {f"near/{i}": torch.tensor(row) for i, row in enumerate(query)}
    result = image_features(*sample_of(train, keys), found, ["near/2", "near/0", "gone"])
    assert list(result.nearest) == ["near/2", "near/0"]
    assert result.num_train == 40
    for key, own in result.nearest.items():
        unit = query[int(key[-1])] / np.linalg.norm(query[int(key[-1])])
        distances = [float(np.linalg.norm(row / np.linalg.norm(row) - unit)) for row in train]
        order = np.argsort(distances)[:3].tolist()
        assert [near.key for near in own] == [keys[place] for place in order]
        assert [near.distance for near in own] == pytest.approx([distances[place] for place in order], abs=1e-4)
        assert [near.label for near in own] == [place % 3 for place in order]


def test_map_has_the_variances_of_the_principal_axes():
    rng = np.random.default_rng(1)
    train = (rng.normal(size=(60, 5)) * [5, 3, 1, 0.5, 0.1]).astype(np.float32)
    result = image_features(*sample_of(train, [f"t/{i}" for i in range(60)]), {"val/0": torch.tensor(train[0])}, [])
    values = np.sort(np.linalg.eigvalsh(np.cov(train.astype(float).T)))[::-1]
    assert result.shares == pytest.approx((values / values.sum())[:2].tolist())
    points = np.array([(point.x, point.y) for point in result.points[""]])
    assert points.var(axis=0, ddof=1) == pytest.approx(values[:2], rel=1e-2)
    [own] = result.points["val"]
    assert np.isclose(points, (own.x, own.y), rtol=1e-3, atol=1e-3).all(axis=1).any()


@given(st.permutations(range(30)), st.integers(1, 9))
def test_the_same_keys_are_kept_in_any_order_and_any_batches(order, size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nearest_training, "TRAIN", 5)
        kept = []
        for places in (list(range(30)), order):
            known = TrainingKeys()
            for start in range(0, 30, size):
                known.add([f"train/{place}" for place in places[start : start + size]])
            known.join(None)
            kept.append(known.by_hash)
        assert kept[0] == kept[1]
        assert len(kept[0]) == 5


def _pictured(folder: Path) -> list[str]:
    return list(json.loads((folder / "thumbnails" / "index.json").read_text(encoding="utf-8")))


def test_a_run_keeps_neighbors_and_draws_the_map_unless_it_is_told_not_to(tmp_path, monkeypatch):
    module, streams = make_module(), make_streams()
    known = next(stream for stream in streams if stream.name == "val")
    like_known = [Sample(s.key, 0.97 * s.image, group=i % 3) for i, s in enumerate(known.source.samples)]
    far = Stream("far", Role.OOD, MemorySource(like_known), OOD_CLASSES)  # many of which are accepted
    options = {"module": module, "streams": [far if stream.name == "far" else stream for stream in streams]}
    results = run([MSP(), KNN(k=3)], output_dir=tmp_path / "with", explain=2, **options).results
    run([MSP(), KNN(k=3)], output_dir=tmp_path / "without", explain=0, **options)
    found = read_features(tmp_path / "with")
    accepted = {key for name in results.detectors for key in results.accepted(name, limit=1000)[0]["key"]}
    assert 0 < len(found.nearest) <= 2
    assert found.nearest.keys() <= accepted
    assert found.num_train == len(streams[0])
    assert all(near.key.startswith("train/") for own in found.nearest.values() for near in own)
    assert set(found.points) == {"", "far", "val"}
    assert any(key.startswith("train/") for key in _pictured(tmp_path / "with"))
    monkeypatch.setattr("oodlit.callbacks.detection.MAX_TO_CLASSIFY", 1)
    run([MSP(), KNN(k=3)], output_dir=tmp_path / "large", explain=2, **options)
    assert _pictured(tmp_path / "large")
    assert not any(key.startswith("train/") for key in _pictured(tmp_path / "large")), "reading them takes too long"
    page, without = ((tmp_path / name / "report.html").read_text(encoding="utf-8") for name in ("with", "without"))
    for part in ("<summary>nearest</summary>", 'aria-label="map of features"'):
        assert part in page
        assert part not in without
    assert not read_features(tmp_path / "without").points
    clear_thumbnails(tmp_path / "with")
    assert not read_features(tmp_path / "with").points
