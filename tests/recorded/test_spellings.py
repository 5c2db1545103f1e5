"""Every obvious spelling of arrays works, or the error shows one that works."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml  # type: ignore[import-untyped]
from safetensors.torch import save_file

from oodlit.base.outputs import Outputs
from oodlit.errors import DataError, InvalidArgumentError
from oodlit.recorded.array_files import read_arrays
from oodlit.recorded.arrays import head_of, stream_of
from oodlit.recorded.from_arrays import read_description
from oodlit.roles import Role

FEATURES = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)
WEIGHT, BIAS = np.linspace(-1, 2, 12, dtype=np.float32).reshape(3, 4), np.arange(3, dtype=np.float32)
LOGITS = FEATURES @ WEIGHT.T + BIAS
LABELS = np.arange(5) % 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of one set in every format, and of a head."""
    root = tmp_path_factory.mktemp("arrays")
    arrays = {"features": FEATURES, "logits": LOGITS, "labels": LABELS}
    tensors = {name: torch.from_numpy(value) for name, value in arrays.items()}
    (root / "folder").mkdir()
    for name, value in arrays.items():
        np.save(root / f"{name}.npy", value)
        np.save(root / "folder" / f"{name}.npy", value)
        np.savez(root / f"only_{name}.npz", anything=value)
        torch.save(tensors[name], root / f"{name}.pt")
    np.savez(root / "val.npz", **arrays)
    np.savez(root / "other.npz", embeddings=FEATURES, logits=LOGITS, targets=LABELS)
    torch.save(tensors, root / "val.pt")
    torch.save({**tensors, "epoch": 3}, root / "val.pth")
    torch.save({"features": FEATURES}, root / "numpy.pt")
    save_file(tensors, root / "val.safetensors")
    columns = {"embedding": list(FEATURES), "logits": list(LOGITS), "labels": LABELS, "path": ["a"] * 5}
    pq.write_table(pa.table(columns), root / "val.parquet")
    head = {"weight": torch.from_numpy(WEIGHT), "bias": torch.from_numpy(BIAS)}
    np.savez(root / "head.npz", weight=WEIGHT, bias=BIAS)
    torch.save(head, root / "head.pt")
    torch.save({f"fc.{name}": value for name, value in head.items()}, root / "network.pt")
    np.save(root / "w.npy", WEIGHT)
    np.save(root / "b.npy", BIAS)
    return root


def described(folder: Path, **content: Any) -> Path:
    path = folder / "features.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


FILES = {"features": "features.npy", "logits": "logits.npy", "labels": "labels.npy"}
SPELLINGS: list[Any] = [
    *("val.npz", "val.pt", "val.pth", "val.safetensors", "val.parquet", "other.npz", "folder"),
    FILES,
    FILES | {"features": "features.pt", "logits": "only_logits.npz"},
    {"embeddings": "features.npy", "logits": "val.npz", "targets": "val.pt"},
    {"features": "val.parquet", "logits": "val.safetensors", "labels": "folder"},
]


@pytest.mark.parametrize("spelling", SPELLINGS, ids=str)
@pytest.mark.parametrize("is_named", [True, False])
def test_sets_in_a_description(folder: Path, spelling: Any, is_named: bool) -> None:
    ood = {"far": spelling} if is_named else spelling
    module, data = read_description(described(folder, id=spelling, ood=ood, head="head.pt"))
    assert [stream.name for stream in data.streams] == ["id", "far" if is_named else "ood"]
    assert module.head.width == 4
    for stream in data.streams:
        batch: Any = stream.source.all  # type: ignore[attr-defined]
        np.testing.assert_array_equal(batch.features, FEATURES)
        np.testing.assert_array_equal(batch.logits, LOGITS)
        assert batch.labels.tolist() == LABELS.tolist()


@pytest.mark.parametrize(
    "spelling",
    [
        lambda root: {name: root / file for name, file in FILES.items()},
        lambda root: {name: str(root / file) for name, file in FILES.items()},
        lambda root: {"features": FEATURES, "logits": root / "logits.pt", "labels": LABELS.tolist()},
        lambda root: {"embedding": torch.from_numpy(FEATURES), "logits": LOGITS, "target": LABELS},
        lambda root: Outputs(torch.from_numpy(LOGITS), torch.from_numpy(FEATURES), torch.from_numpy(LABELS)),
        lambda root: str(root / "val.pt"),
    ],
)
def test_sets_in_python(folder: Path, spelling: Callable[[Path], Any]) -> None:
    rows: Any = stream_of("val", Role.ID, spelling(folder)).source
    np.testing.assert_array_equal(rows.all.features, FEATURES)
    np.testing.assert_array_equal(rows.all.logits, LOGITS)
    assert rows.all.labels.tolist() == LABELS.tolist()


@pytest.mark.parametrize(
    "spelling",
    ["head.npz", "head.pt", "network.pt", {"weight": "w.npy", "bias": "b.npy"}, ["w.npy", "b.npy"], "w.npy"],
    ids=str,
)
def test_heads(folder: Path, spelling: Any) -> None:
    bias = np.zeros(3) if spelling == "w.npy" else BIAS
    val = FILES if spelling != "w.npy" else {"features": "features.npy"}
    module, _ = read_description(described(folder, id=val, ood=val, head=spelling))
    for head in (module.head, head_of(WEIGHT) if spelling == "w.npy" else head_of((WEIGHT, BIAS))):
        np.testing.assert_array_equal(head.weight, WEIGHT)
        np.testing.assert_array_equal(head.offset, bias)


SHOWN = "{features: a.npy, logits: b.npy}"


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ({"id": "features.npy"}, SHOWN),
        ({"id": "features.pt"}, SHOWN),
        ({"id": "only_features.npz"}, SHOWN),
        ({"id": ["features.npy", "logits.npy"]}, SHOWN),
        ({"id": 3}, SHOWN),
        ({"id": "val.npz", "ood": ["val.npz", "val.pt"]}, "{far: far.npz}"),
        ({"id": "numpy.pt"}, 'torch.save({"features": features, "logits": logits}, file)'),
        ({"id": {"feature": "features.npy"}}, "did you mean 'features'"),
        ({"id": {"features": "head.npz"}}, "or one called 'features'; the file has bias, weight"),
        ({"id": "val.npz", "head": "val.npz"}, "head: missing 'weight'; found"),
        ({"id": "features.csv"}, ".npz, .parquet, .pt"),
    ],
)
def test_what_cannot_be_read_shows_a_spelling_that_can(folder: Path, content: dict[str, Any], shown: str) -> None:
    (folder / "features.csv").write_text("0,1")
    with pytest.raises((InvalidArgumentError, DataError), match=re.escape(shown)):
        read_description(described(folder, **content))


def test_a_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Harmful:
        def __reduce__(self) -> tuple[Any, ...]:
            return exec, ("raise SystemExit('code ran')",)

    torch.save({"features": Harmful()}, tmp_path / "bad.pt")
    with pytest.raises(DataError, match="weights_only=True"):
        read_arrays(tmp_path / "bad.pt")
