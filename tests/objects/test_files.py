"""From files alone: several splits by name, detectors fitted on training boxes, the command and the page."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from oodlit.cli.main import main
from oodlit.cli.objects import split_files
from oodlit.detectors import KNN, MSP, Energy, Mahalanobis, TemperatureScaledMSP, ViM
from oodlit.detectors.contract import registry
from oodlit.detectors.contract.every import every_detector
from oodlit.errors import DataError, InvalidArgumentError, RequirementError
from oodlit.objects import BoxFiles, ObjectResults, evaluate_files, read_head, save_pictures
from oodlit.outputs import Head
from oodlit.results.files.storage import FILES, IMAGES, OBJECTS

CENTRES = np.random.default_rng(1).normal(size=(4, 8)) * 3
IDS = [1, 7, 8, 90]
NAMES = ["cat", "dog", "bird", "<b>bike</b>"]


def write_set(
    folder: Path, name: str, *, unknown: bool, seed: int, as_text: bool = False, n_images: int = 12
) -> BoxFiles:
    """Objects with a box or two each, features near the centre of their class, or anywhere if they are unknown."""
    random = np.random.default_rng(seed)
    ids: list[Any] = [f"{n:06x}" if as_text else n for n in range(n_images)]
    coco: dict[str, Any] = {
        "images": [{"id": i, "width": 200, "height": 150, "file_name": f"{i}.jpg"} for i in ids],
        "categories": [{"id": 500, "name": "zebra"}] if unknown else [
            {"id": i, "name": n} for i, n in zip(IDS, NAMES, strict=True)
        ],
        "annotations": [],
    }  # fmt: skip
    rows: dict[str, list[Any]] = {n: [] for n in ("image_id", "box", "confidence", "logits", "features")}
    for image in ids[:-1]:  # the last has neither objects nor boxes
        for _ in range(int(random.integers(1, 4))):
            corner, side, label = random.uniform(0, 100, 2), random.uniform(15, 45, 2), int(random.integers(4))
            category = 500 if unknown else IDS[label]
            entry = {"id": len(coco["annotations"]), "image_id": image, "category_id": category}
            coco["annotations"].append(entry | {"bbox": [*corner.tolist(), *side.tolist()]})
            for _ in range(int(random.integers(1, 3))):
                features = (random.normal(size=8) * 4 if unknown else CENTRES[label]) + random.normal(size=8)
                rows["image_id"].append(image)
                rows["box"].append(np.concatenate([corner, corner + side]) + random.normal(0, 1.5, 4))
                rows["confidence"].append(float(random.beta(4, 2)))
                rows["features"].append(features.astype(np.float32))
                rows["logits"].append((features @ CENTRES.T / 6).astype(np.float32))
    (folder / f"{name}.json").write_text(json.dumps(coco))
    box = np.array(rows.pop("box"))
    columns = {c: box[:, n] for n, c in enumerate(("xmin", "ymin", "xmax", "ymax"))}
    columns["my_score"] = np.array([logits.max() for logits in rows["logits"]], dtype=float)
    pq.write_table(pa.table({**rows, **columns}), folder / f"{name}.parquet")
    return BoxFiles(folder / f"{name}.parquet", folder / f"{name}.json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("boxes")
    write_set(made, "train", unknown=False, seed=0, n_images=40)
    write_set(made, "val", unknown=False, seed=1)
    write_set(made, "near_coco", unknown=True, seed=2)
    write_set(made, "far", unknown=True, seed=3, as_text=True)
    return made


def files(folder: Path, name: str) -> BoxFiles:
    return BoxFiles(folder / f"{name}.parquet", folder / f"{name}.json")


def evaluated(folder: Path, **changes: Any) -> ObjectResults:
    splits = {name: files(folder, name) for name in ("near_coco", "far")}
    arguments: dict[str, Any] = {"detectors": [MSP(), KNN(k=3), Mahalanobis()], "scores": ["my_score"], "bootstrap": 20}
    arguments |= {"train": files(folder, "train"), **changes}
    return evaluate_files(files(folder, "val"), splits, **arguments)


@pytest.fixture(scope="module")
def results(folder: Path) -> ObjectResults:
    return evaluated(folder)


def test_detectors_are_fitted_and_columns_taken(results: ObjectResults, folder: Path) -> None:
    assert results.detectors == ("my_score", "msp", "knn", "mahalanobis")
    assert results.splits == ("near_coco", "far")
    assert results.class_names == tuple(NAMES)
    assert results.run.t_star_rule == "best F1 on the ID set"
    assert 0 < results.settings.t_star < 1
    assert results.value("auroc", dataset="far", detector="mahalanobis") > 0.9
    table = pq.read_table(folder / "far.parquet").to_pandas()
    far = results.boxes[results.boxes["dataset"] == "far"]
    assert sorted(far["my_score"]) == sorted(table["my_score"])
    assert results.images.groupby("dataset")["boxes"].min().tolist() == [0, 0, 0]
    assert far["key"].iloc[0] == "far/000000#0"


def test_scores_are_those_of_the_detector(results: ObjectResults, folder: Path) -> None:
    table = pq.read_table(folder / "near_coco.parquet").to_pandas()
    logits = torch.tensor(np.stack(table["logits"].to_list()))
    near = results.boxes[results.boxes["dataset"] == "near_coco"]
    expected = logits.log_softmax(1).amax(1).double().numpy()
    np.testing.assert_allclose(np.sort(near["msp"]), np.sort(expected), rtol=1e-5, atol=1e-6)


def test_matched_boxes_are_another_fit(folder: Path, results: ObjectResults) -> None:
    matched = evaluated(folder, fit_on="matched", detectors=[Mahalanobis()], scores=(), t_star=0.3)
    every = evaluated(folder, detectors=[Mahalanobis()], scores=(), t_star=0.3)
    assert not np.allclose(matched.boxes["mahalanobis"], every.boxes["mahalanobis"])
    with pytest.raises(InvalidArgumentError, match="fit_on='matched' requires annotations in train"):
        evaluated(folder, fit_on="matched", train=BoxFiles(folder / "train.parquet"))


def test_detectors_that_do_not_apply_are_left_out_with_the_reason(folder: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="detector 'vim' is skipped: it needs the linear head; the file has none"):
        found = evaluated(folder, detectors=[Energy(), ViM(dim=4)], scores=())
    assert found.detectors == ("energy",)
    assert found.run.not_applicable == {"vim": "needs the linear head; the file has none"}
    assert evaluated(folder, detectors="energy", scores=()).detectors == ("energy",)
    with pytest.raises(RequirementError, match=r"not applicable: 1 of 1 detectors \(knn: needs training"):
        evaluated(folder, detectors=[KNN()], scores=(), train=None)
    save_file({"weight": torch.tensor(CENTRES / 6, dtype=torch.float32)}, tmp_path / "head.safetensors")
    with_head = evaluated(folder, detectors=[ViM(dim=4)], scores=(), head=read_head(tmp_path / "head.safetensors"))
    assert with_head.detectors == ("vim",)


def test_boxes_in_json_have_no_logits_and_the_error_is_short(folder: Path, tmp_path: Path) -> None:
    def as_json(name: str) -> BoxFiles:
        table = pq.read_table(folder / f"{name}.parquet").to_pandas()
        boxes = [
            {
                "image_id": row.image_id,
                "category_id": IDS[int(np.argmax(row.logits))],
                "bbox": [row.xmin, row.ymin, row.xmax - row.xmin, row.ymax - row.ymin],
                "score": row.confidence,
                "logits": row.logits.tolist(),
            }
            for row in table.itertuples()
        ]
        (tmp_path / f"{name}.json").write_text(json.dumps(boxes))
        return BoxFiles(tmp_path / f"{name}.json", folder / f"{name}.json")

    files_ = {"id_files": as_json("val"), "splits": {"near": as_json("near_coco")}}
    with pytest.raises(RequirementError, match=r"Parquet with their logits or features \(COCO JSON cannot") as caught:
        evaluate_files(**files_, detectors=every_detector()[0])
    assert len(str(caught.value)) < 900
    assert "more: need the linear head; the file has none" in str(caught.value)
    own = [
        evaluate_files(**given, scores=[name]).value("auroc", dataset="near", detector="score")
        for given in (files_, {"id_files": files(folder, "val"), "splits": {"near": files(folder, "near_coco")}})
        for name in ("confidence", "score")
    ]
    assert len(own) == 4
    assert max(own) - min(own) < 1e-12


def test_a_temperature_needs_labels_other_than_the_predictions(folder: Path) -> None:
    with pytest.warns(UserWarning, match="'temperature_scaled_msp' is skipped: it needs annotated labels"):
        found = evaluated(folder, detectors=[Energy(), TemperatureScaledMSP()], scores=())
    assert found.detectors == ("energy",)
    matched = evaluated(folder, detectors=[TemperatureScaledMSP()], scores=(), fit_on="matched", t_star=0.3)
    assert matched.detectors == ("temperature_scaled_msp",)


def test_what_does_not_fit_is_named(folder: Path, tmp_path: Path) -> None:
    known, near = files(folder, "val"), files(folder, "near_coco")
    with pytest.raises(InvalidArgumentError, match="at least one OOD split"):
        evaluate_files(known, {}, scores=["my_score"])
    with pytest.raises(InvalidArgumentError, match=r"detectors=.* or scores=.*, got neither"):
        evaluate_files(known, {"near": near})
    with pytest.raises(InvalidArgumentError, match="id_name='near'"):
        evaluate_files(known, {"near": near}, scores=["my_score"], id_name="near")
    with pytest.raises(InvalidArgumentError, match="split 'near': every OOD split requires annotations"):
        evaluate_files(known, {"near": BoxFiles(near.predictions)}, scores=["my_score"])
    with pytest.raises(InvalidArgumentError, match="requires annotated ID objects; pass annotations"):
        evaluate_files(BoxFiles(known.predictions), {"near": near}, scores=["my_score"])
    for name in ("val", "near_coco"):
        pq.write_table(_renamed(folder / f"{name}.parquet"), tmp_path / f"{name}.parquet")
    with pytest.raises(InvalidArgumentError, match=r"share names with detectors: msp"):
        evaluate_files(
            BoxFiles(tmp_path / "val.parquet", known.annotations),
            {"near": BoxFiles(tmp_path / "near_coco.parquet", near.annotations)},
            scores=["msp"],
            detectors=[MSP()],
        )
    with pytest.raises(DataError, match=r"head\.safetensors cannot be read"):
        read_head(tmp_path / "head.safetensors")
    save_file({"bias": torch.zeros(1)}, tmp_path / "head.safetensors")
    with pytest.raises(DataError, match="'weight', found bias"):
        read_head(tmp_path / "head.safetensors")


def changed(folder: Path, out: Path, name: str, **columns: Any) -> BoxFiles:
    """The files of a split with other columns; None leaves one out."""
    table = pq.read_table(folder / f"{name}.parquet")
    for column, values in columns.items():
        at = table.column_names.index(column)
        table = table.drop_columns(column) if values is None else table.set_column(at, column, pa.array(values(table)))
    pq.write_table(table, out / f"{name}.parquet")
    return BoxFiles(out / f"{name}.parquet", folder / f"{name}.json")


def test_files_of_several_networks_are_refused(folder: Path, tmp_path: Path) -> None:
    known, detectors = files(folder, "val"), [MSP(), KNN(k=3), Mahalanobis()]
    given: dict[str, Any] = {"train": files(folder, "train"), "detectors": detectors, "t_star": 0.3, "bootstrap": 0}
    bare = {"near": changed(folder, tmp_path, "near_coco", features=None)}
    with pytest.raises(DataError, match=r"near: no features found\. .* Sets with features: id, the training boxes"):
        evaluate_files(known, bare, **given)
    assert evaluate_files(known, bare, **given | {"detectors": [MSP()]}).detectors == ("msp",)
    wide = changed(folder, tmp_path, "far", features=lambda table: [[1.0] * 9] * len(table))
    with pytest.raises(DataError, match="features of the boxes differ in length: 8 in id, 9 in far"):
        evaluate_files(known, {"far": wide}, **given)
    plain = changed(folder, tmp_path, "train", features=None, logits=None)
    with pytest.raises(DataError, match=r"the boxes have no logits or features; add logits"):
        evaluate_files(known, {"far": files(folder, "far")}, **given | {"train": plain})
    with pytest.raises(DataError, match=r"train\.parquet: no box to fit on: 0 of \d+ boxes have .* t\* = 2; lower"):
        evaluate_files(known, {"far": files(folder, "far")}, **given | {"t_star": 2.0})
    flat = changed(folder, tmp_path, "train", xmin=lambda table: table["xmax"].to_pylist())
    with pytest.raises(DataError, match=r"boxes have .* t\* = 0\.3, but none of them hits .*, pass fit_on='predicted'"):
        evaluate_files(known, {"far": files(folder, "far")}, **given | {"train": flat, "fit_on": "matched"})
    # Without class names, category_id has no meaning.
    knn = given | {"train": changed(folder, tmp_path, "train", logits=None), "detectors": [KNN(k=3)]}
    with pytest.raises(InvalidArgumentError, match=r"no predicted classes; add category_id, and pass class_names"):
        evaluate_files(BoxFiles(known.predictions), {"far": files(folder, "far")}, **knn)


def test_the_head_of_another_network_is_refused(folder: Path) -> None:
    weight = torch.tensor(CENTRES / 6, dtype=torch.float32)
    for wrong in (Head(weight, torch.ones(4)), Head(weight.flip(0), None), Head(torch.cat([weight, weight[:1]]), None)):
        with pytest.raises(DataError, match="head: weight and bias do not reproduce the logits of id"):
            evaluated(folder, detectors=[ViM(dim=4)], scores=(), head=wrong)
    with pytest.raises(DataError, match="head: expected features of width 7, got width 8 in id"):
        evaluated(folder, detectors=[ViM(dim=4)], scores=(), head=Head(weight[:, :7], None))


def test_a_detector_that_fails_takes_no_other_with_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Energy, "_score", lambda self, outputs: 1 / 0)
    monkeypatch.setattr(KNN, "_score", lambda self, outputs: torch.full((len(outputs),), torch.nan))
    monkeypatch.setattr(Mahalanobis, "_fit", lambda self, statistics, head: 1 / 0)
    found = evaluated(folder, detectors=[MSP(), Energy(), KNN(k=3), Mahalanobis()], scores=())
    assert found.detectors == ("msp",)
    reasons = found.run.not_applicable
    assert "failed on 'id', in the batch that begins with 'id/0#0': ZeroDivisionError" in reasons["energy"]
    assert "boxes have the score NaN" in reasons["knn"]
    assert "failed in the fit: ZeroDivisionError" in reasons["mahalanobis"]
    assert len(found.run.findings) == 3
    with pytest.raises(ZeroDivisionError):
        evaluated(folder, detectors=[Energy()], scores=())


def _renamed(path: Path) -> pa.Table:
    table = pq.read_table(path)
    return table.rename_columns(["msp" if name == "my_score" else name for name in table.column_names])


def test_a_split_without_any_box_is_evaluated(folder: Path, tmp_path: Path) -> None:
    pq.write_table(pq.read_table(folder / "far.parquet").slice(0, 0), tmp_path / "far.parquet")
    splits = {"far": BoxFiles(tmp_path / "far.parquet", folder / "far.json")}
    found = evaluate_files(files(folder, "val"), splits, detectors=[MSP()], bootstrap=5)
    assert found.value("no_boxes", dataset="far") == 1
    assert found.value("r_u", dataset="far", detector="msp") == 0
    assert found.value("dismissed", dataset="far", detector="msp") == 1
    assert found.reason("p_u", dataset="far", detector="msp") == "no box is called unknown"


def test_the_command_writes_results_and_page(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    words = ["objects", "evaluate", f"--annotations=near_coco={folder / 'near_coco.json'},far={folder / 'far.json'}"]
    words += [f"--predictions=near_coco={folder / 'near_coco.parquet'},far={folder / 'far.parquet'}"]
    words += [f"--id_predictions={folder / 'val.parquet'}", f"--id_annotations={folder / 'val.json'}"]
    words += ["--scores=my_score", "--detectors=[Energy]", "--bootstrap=20", f"--out={out}"]
    assert main(words) == 0
    told = capsys.readouterr()
    assert "unknown objects in 12 images" in told.out
    assert told.err == ""
    found = ObjectResults.load(out)
    assert found.detectors == ("my_score", "energy")
    page = (out / "report.html").read_text()
    assert "<title>out - oodlit report</title>" in page
    assert "as published for COCO-near" in page
    assert "so the values come from different images" in page
    assert "&lt;b&gt;bike&lt;/b&gt;" in page
    assert "<b>bike" not in page
    with Image.new("RGB", (200, 150), (200, 200, 200)) as image:
        save_pictures(found, out, lambda keys: dict.fromkeys(keys, image))
    assert main(["objects", "report", str(out)]) == 0
    assert (out / "report.html").read_text().count("data:image/jpeg") == 2 * 12  # of two detectors and two splits
    (out / "fitted").mkdir()  # of another run: what the new one does not have goes with it
    assert main(words) == 0
    assert {path.name for path in out.iterdir()} == {*FILES, IMAGES, OBJECTS, "report.html"}
    capsys.readouterr()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("")
    assert main([*words[:-1], f"--out={tmp_path / 'other'}"]) == 2
    assert "which oodlit did not write" in capsys.readouterr().err
    for more in ([], ["--detectors", "all", "--scores=my_score"]):
        assert main([*words[:-4], *more, "--bootstrap=0", f"--out={out}"]) == 0
        found = ObjectResults.load(out)
        assert {"msp", "energy", "max_logit"} <= set(found.detectors)
        assert "odin" in found.run.not_applicable
        assert ("my_score" in found.detectors) == bool(more)
    capsys.readouterr()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.json,b.json", "NAME=FILE, got 'a.json'"),
        ("near=a.json,near=b.json", "repeats the name of a split"),
        ("near=a.json,=b.json", "NAME=FILE, got '=b.json'"),
    ],
)
def test_names_of_splits(text: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        split_files(text, "--annotations")
    assert split_files("far.parquet", "--predictions", like={"near": Path("near.json")}) == {
        "near": Path("far.parquet")
    }
    with pytest.raises(InvalidArgumentError, match=r"expected the splits of --annotations \(near\), got far"):
        split_files("far=b.parquet", "--predictions", like={"near": Path("near.json")})


def test_the_page_of_a_run_without_anything_is_made(folder: Path, tmp_path: Path) -> None:
    from oodlit.objects import write_report

    pq.write_table(pq.read_table(folder / "val.parquet").slice(0, 0), tmp_path / "val.parquet")
    splits = {"far": files(folder, "far")}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = evaluate_files(BoxFiles(tmp_path / "val.parquet"), splits, scores=["my_score"], t_star=0.1, bootstrap=5)
        page = write_report(found, tmp_path / "page.html").read_text()
    assert "tau: there is no ID box" in page
    assert "no annotations, so no box counts as hitting an object" in page


def test_at_least_twenty_detectors_judge_boxes(folder: Path, tmp_path: Path) -> None:
    save_file({"weight": torch.tensor(CENTRES / 6, dtype=torch.float32)}, tmp_path / "head.safetensors")
    every = [kind() for kind in registry.detectors().values()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those that are left out, and presets that are tuned
        found = evaluated(
            folder, detectors=every, scores=(), head=read_head(tmp_path / "head.safetensors"), bootstrap=0
        )
    assert len(found.detectors) >= 20
    assert len(found.detectors) + len(found.run.not_applicable) == len(every)
    values = {name: found.value("auroc", dataset="far", detector=name) for name in found.detectors}
    assert all(0 <= value <= 1 for value in values.values())
    reached = {round(1 - found.value("dismissed", dataset="far", detector=name), 9) for name in found.detectors}
    assert len(reached) == 1  # what is hit is a matter of the boxes alone
