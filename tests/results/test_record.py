"""The record of a run: its types, its file, and files of earlier versions."""

import ast
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

import oodlit
from oodlit import Results, Role
from oodlit.base.json_files import parse_json, read_json, to_json, to_plain
from oodlit.detectors import KNN
from oodlit.errors import DataError
from oodlit.gate import Gate
from oodlit.objects import ObjectResults
from oodlit.recorded.cache_data import open_cache
from oodlit.results import DatasetInfo, Finding
from oodlit.results.record_parts import SkippedImage, Unfinished
from oodlit.results.run_record import FORMAT, ImageRunRecord, RunRecord
from oodlit.testing.backbones import TinyConvNet

PACKAGE = Path(oodlit.__file__).parent
FILES = Path(__file__).parent.parent / "golden" / "files"


def test_results_of_an_earlier_version_load() -> None:
    results = Results.load(FILES / "results")
    assert results.run.backbone.name == "tiny"
    assert results.run.detector_settings["knn"].init_args["k"] == 3
    assert results.run.data.train_images == 150
    assert results.run.extra == {"note": "kept"}
    assert results.run.format == FORMAT
    written = json.loads((FILES / "results" / "run.json").read_text())
    del written["checksums"]
    settings = to_plain(results.settings.to_json())
    assert settings | written["settings"] == settings  # later settings have their default
    assert to_plain(results.run.entries()) == written | {"format": FORMAT, "settings": settings}


def test_boxes_of_an_earlier_version_load() -> None:
    results = ObjectResults.load(FILES / "boxes")
    written = json.loads((FILES / "boxes" / "run.json").read_text())
    assert results.run.class_names == written["class_names"]
    assert to_plain(asdict(results.settings)) == written["settings"]
    assert {name: one["tau"] for name, one in written["thresholds"].items()} == {
        name: results.threshold(name) for name in results.detectors
    }


def test_a_cache_of_an_earlier_version_opens() -> None:
    module, data = open_cache(FILES / "cache")
    assert module.name == "tiny"
    assert {stream.name: len(stream) for stream in data.streams} == {
        "train": 150, "val": 30, "far": 30, "tests": 8, "shifted": 12,
    }  # fmt: skip


def test_a_gate_of_an_earlier_version_loads() -> None:
    gate = Gate.load(FILES / "gate", model=TinyConvNet(6, dropout=0.2))
    written = json.loads((FILES / "gate" / "gate.json").read_text())
    assert isinstance(gate.detector, KNN)
    assert repr(gate.threshold.value) == written["threshold"]["value"]
    assert gate.record.backbone.input_shape == written["backbone"]["input_shape"]


def _lookups(tree: ast.AST) -> Iterator[ast.expr]:
    """Expressions such as `results.run["x"]`, `record.get("x")` and `"x" in run`."""
    for node in ast.walk(tree):
        owner: ast.expr | None = None
        if isinstance(node, ast.Subscript) and isinstance(getattr(node.slice, "value", None), str):
            owner = node.value if not isinstance(node.ctx, ast.Store) else None
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop"):
            owner = node.func.value
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            owner = node.comparators[0] if isinstance(node.left, ast.Constant) else None
        name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
        if name in ("run", "record"):
            yield node  # type: ignore[misc]


def test_no_module_looks_up_an_entry_of_a_record_by_its_name() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} {ast.unparse(node)}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in _lookups(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []
    example = ast.parse("results.run['a']; record.get('b'); 'c' in run; results.scores['d']; record.counts['e']")
    assert len(list(_lookups(example))) == 3


def test_every_field_is_documented() -> None:
    for kind in (RunRecord, ImageRunRecord, type(ObjectResults.load(FILES / "boxes").run)):
        documented = "\n".join(base.__doc__ or "" for base in kind.__mro__)
        assert [name for name in kind.__struct_fields__ if f"        {name}: " not in documented] == []


def test_own_entries_are_kept_and_known_ones_are_joined() -> None:
    record = ImageRunRecord(not_applicable={"vim": "no head"}, findings=[Finding("chance", "text")])
    more = record.with_entries({"not_applicable": {"knn": "no data"}, "mine": {"path": Path("a"), "x": np.int64(3)}})
    assert more.not_applicable == {"vim": "no head", "knn": "no data"}
    assert more.extra == {"mine": {"path": "a", "x": 3}}
    assert ImageRunRecord.of(json.loads(to_json(more.entries()))) == more
    assert more.with_entries({"mine": {"y": 1}}).extra == {"mine": {"path": "a", "x": 3, "y": 1}}


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"counts": {"val": "many"}}, r"Expected `int`, got `str` - at `\$\.counts"),
        ({"skipped": [{"key": "val/0"}]}, r"missing required field `reason` - at `\$\.skipped\[0\]`"),
        ({"format": FORMAT + 1}, f"expected format {FORMAT} or older, got {FORMAT + 1}"),
        ({"datasets": [{"name": "", "role": "id"}]}, r"at `\$\.datasets\[0\]`"),
    ],
)
def test_a_wrong_entry_is_named(entries: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=f"record of the run: .*{message}"):
        ImageRunRecord.of(entries)


def test_numbers_that_json_lacks_survive() -> None:
    record = ImageRunRecord(thresholds={"msp": {"fpr95": -np.inf, "der99": np.nan}})
    again = ImageRunRecord.of(json.loads(to_json(record.entries())))
    assert again.thresholds["msp"]["fpr95"] == -np.inf
    assert np.isnan(again.thresholds["msp"]["der99"])


def test_only_known_entries_are_written() -> None:
    record = RunRecord(datasets=[DatasetInfo("val", Role.ID)])
    assert {"config", "warnings", "backbone", "acceleration", "unfinished"}.isdisjoint(record.entries())
    assert {"skipped", "findings", "datasets"} <= record.entries().keys()
    more = structs.replace(record, unfinished=Unfinished(["far"]), skipped=[SkippedImage("val/0", "damaged")])
    assert to_plain(more.entries())["unfinished"] == {"missing": ["far"]}
    assert to_plain(more.entries())["skipped"] == [{"key": "val/0", "reason": "damaged"}]


def test_files_are_bounded_by_size_and_depth(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"a": [[1]]}))
    assert read_json(file, dict, max_bytes=100, max_depth=3) == {"a": [[1]]}
    with pytest.raises(DataError, match=r"a\.json: expected at most 3 bytes"):
        read_json(file, dict, max_bytes=3)
    with pytest.raises(DataError, match=r"a\.json: expected at most 2 levels of nested"):
        read_json(file, dict, max_depth=2)
    with pytest.raises(DataError, match="deep: not valid JSON"):
        parse_json(b"[" * 100_000, list, where="deep")


def test_results_with_another_record() -> None:
    results = Results.load(FILES / "results")
    titled = results.with_record(structs.replace(results.run, title="mine"))
    assert titled.run.title == "mine"
    assert replace(titled, run=results.run).run == results.run
