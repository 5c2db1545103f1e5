"""`oodlit evaluate` with some of the classes and a cache of all classes, and with an untrained network as a control."""

from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from oodlit import Results, Role
from oodlit.cli.main import main
from oodlit.datamodules import MemorySource, OODDataModule, Sample, Stream
from oodlit.errors import InvalidArgumentError
from oodlit.recorded.cache_data import RecordedCache
from oodlit.results import controls
from oodlit.results.comparing.controls import control_findings

pytestmark = pytest.mark.filterwarnings("ignore::oodlit.metrics.UndefinedMetricWarning")
CONFIG = f"""
backbone: test_resnet.r160_in1k
data: {{class_path: {__name__}.toy_data}}
detectors: [MSP, {{class_path: KNN, init_args: {{k: 3}}}}]
accelerator: cpu
"""
SUBSET = ["--data.class_subset=[1, 2, 4]", "--data.dropped_as=dropped"]


def toy_stream(name: str, role: Role, n: int) -> Stream:
    rng = np.random.default_rng(len(name))
    images = [Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)) for _ in range(n)]
    known = role is not Role.OOD
    return Stream(
        name, role, MemorySource([Sample(f"{i:03d}", im, i % 5 if known else -1) for i, im in enumerate(images)])
    )


def toy_data(class_subset: list[int] | None = None, dropped_as: str | None = None) -> OODDataModule:
    streams = [toy_stream("train", Role.TRAIN, 20), toy_stream("val", Role.ID, 15), toy_stream("far", Role.OOD, 12)]
    return OODDataModule(streams, batch_size=8, class_subset=class_subset, dropped_as=dropped_as)


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """The command with a checkpoint, which stands for trained weights."""
    torch.manual_seed(7)
    torch.save(timm.create_model("test_resnet").state_dict(), tmp_path / "weights.pt")
    (tmp_path / "run.yaml").write_text(CONFIG)
    return ["evaluate", "--config", str(tmp_path / "run.yaml"), "--weights", str(tmp_path / "weights.pt")]


def test_a_cache_of_all_classes_serves_a_class_subset(tmp_path: Path, words: list[str], capsys) -> None:
    cache = ["--cache", str(tmp_path / "cache")]
    assert main([*words, *cache, "--out", str(tmp_path / "all")]) == 0, capsys.readouterr().err
    before = RecordedCache.read(tmp_path / "cache").settings
    capsys.readouterr()
    assert main([*words, *cache, *SUBSET, "--out", str(tmp_path / "cached")]) == 0, capsys.readouterr().err
    assert "cache hit for train, val, far; the network will not run" in " ".join(capsys.readouterr().out.split())
    assert RecordedCache.read(tmp_path / "cache").settings == before
    assert main([*words, *SUBSET, "--out", str(tmp_path / "direct")]) == 0, capsys.readouterr().err
    cached, direct = Results.load(tmp_path / "cached"), Results.load(tmp_path / "direct")
    assert {info.name for info in cached.datasets} == {"train", "val", "far", "dropped"}
    assert direct.run.counts == cached.run.counts
    keys = ["key", "label", "prediction"]
    assert cached.scores[keys].equals(direct.scores[keys])
    np.testing.assert_allclose(cached.scores[["msp", "knn"]], direct.scores[["msp", "knn"]], rtol=1e-4, atol=1e-6)


def test_a_cache_of_a_subset_is_still_read(tmp_path: Path, words: list[str], capsys) -> None:
    words += ["--cache", str(tmp_path / "cache"), *SUBSET]
    assert main([*words, "--out", str(tmp_path / "one")]) == 0, capsys.readouterr().err
    assert main([*words, "--out", str(tmp_path / "two")]) == 0, capsys.readouterr().err
    assert "cache hit for train, val, far, dropped" in " ".join(capsys.readouterr().out.split())
    one, two = Results.load(tmp_path / "one"), Results.load(tmp_path / "two")
    assert one.table.equals(two.table)


def test_an_untrained_network_is_a_control(tmp_path: Path, words: list[str], capsys) -> None:
    out = tmp_path / "out"
    assert main([*words, "--untrained", "--out", str(out)]) == 0, capsys.readouterr().err
    results, random = Results.load(out), Results.load(out / "untrained")
    assert random.run.backbone.fingerprint != results.run.backbone.fingerprint
    assert "random weights" in random.run.caveat
    assert random.run.backbone.is_untrained
    assert random.run.backbone.published_as is None
    assert results.run.backbone.published_as is not None
    assert not results.run.backbone.is_untrained
    frame = controls(results)
    assert set(frame["control"]) == {"halves", "semantic", "untrained", "training"}
    rows = frame[frame["control"] == "untrained"]
    for row in rows.to_dict("records"):
        assert row["auroc"] == random.value("auroc", dataset="far", detector=row["detector"])
    assert rows.reset_index(drop=True).equals(
        controls(results, random).query("control == 'untrained'").reset_index(drop=True)
    )
    assert [f.text for f in control_findings(results)] == [f.text for f in control_findings(results, random)]
    assert '<th class="num">untrained</th>' in (out / "report.html").read_text()
    assert main([*words, "--untrained", "--out", str(out)]) == 0  # complete: neither run is repeated
    assert "this run is already complete" in " ".join(capsys.readouterr().out.split())
    assert main([*words, "--controls", "--out", str(tmp_path / "without")]) == 0
    capsys.readouterr()
    assert main([*words, "--untrained", "--out", str(tmp_path / "without")]) == 2
    assert "made without --untrained; pass --again" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(InvalidArgumentError, match="3 images of far are in only one of the runs"):
        controls(results, less(random))


def less(results: Results) -> Results:
    """The results without three images."""
    rows = results.scores[~results.scores["key"].isin([f"far/{i:03d}" for i in range(3)])]
    return Results.from_scores(rows, results.datasets, results.detectors, bootstrap=0)


_FLATTEN = "{class_path: torch.nn.Flatten}"


@pytest.mark.parametrize("more", [["--fitted", "fit"], ["--features", "f.yaml"], ["--backbone", _FLATTEN]])
def test_an_untrained_network_needs_a_network_by_name(more: list[str], words: list[str], capsys) -> None:
    given = ["evaluate", "--untrained", *more] if "--features" in more else [*words, "--untrained", *more]
    assert main(given) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "error: --untrained" in error
    assert ("--weights FILE), got Flatten" if more[0] == "--backbone" else f"omit {more[0]}") in error
