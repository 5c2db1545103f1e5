"""Evaluation of existing features and logits in place of images and network."""

import json
import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

import oodlit
from oodlit import Gate, Head, Results, Role, evaluate_arrays
from oodlit._lightning import LIGHTNING_LOGGERS
from oodlit.callbacks import OODDetection
from oodlit.cli.main import main
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.detectors import MSP, ODIN, Energy, Mahalanobis
from oodlit.errors import DataError, InvalidArgumentError, OodlitError, UnknownNameError
from tests.callbacks.support import make_module, make_streams, make_trainer
from tests.recorded.support import outputs_of, some_detectors

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(scope="module")
def module():
    made = make_module()
    made.eval()
    return made


@pytest.fixture(scope="module")
def sets(module):
    return {role: outputs_of(module, role) for role in Role if role is not Role.POOL}


def arrays(sets, **more):
    head = more.pop("head", None)
    return {
        "train": sets[Role.TRAIN],
        "id": sets[Role.ID],
        "ood": {"far": sets[Role.OOD]},
        "shift": {"shifted": sets[Role.SHIFT]},
        "unit_tests": {"tests": sets[Role.UNIT_TEST]},
        "head": head,
        "detectors": some_detectors(),
    } | more


def scores_of(results: Results) -> pd.DataFrame:
    """Scores by key, whatever the names of the sets."""
    frame = results.scores[results.scores["dataset"] != "train"].copy()
    frame["key"] = frame["dataset"].replace({"val": "id"}) + frame["key"].str.partition("/")[2]
    return frame.set_index("key").sort_index()[list(results.detectors)].astype(float)


def test_detectors_are_given_by_name(module, sets):
    results = evaluate_arrays(**arrays(sets, head=module.head, detectors=["Energy", "Mahalanobis++"]))
    assert results.detectors == ("energy", "mahalanobis_plus_plus")
    with pytest.raises(UnknownNameError, match="unknown detector 'Enrgy'; did you mean 'energy'"):
        evaluate_arrays(**arrays(sets, detectors="Enrgy"))


def test_the_scores_are_those_of_a_run_with_the_network(module, sets):
    detection = OODDetection(some_detectors())
    make_trainer(detection).predict(module, OODDataModule(make_streams(), batch_size=7), return_predictions=False)
    results = evaluate_arrays(**arrays(sets, head=module.head))
    pd.testing.assert_frame_equal(scores_of(results), scores_of(detection.results), **TOLERANCE)
    assert not results.run.not_applicable
    assert results.value("accuracy", dataset="id") == detection.results.value("accuracy", dataset="val")


@pytest.mark.parametrize("batch_size", [1, 13, 10_000])
def test_the_size_of_batches_does_not_matter(module, sets, batch_size):
    one, other = (evaluate_arrays(**arrays(sets, head=module.head, batch_size=size)) for size in (64, batch_size))
    pd.testing.assert_frame_equal(scores_of(one), scores_of(other), **TOLERANCE)


def test_logits_follow_from_features_and_head_where_they_were_not_recorded(module, sets):
    without = {role: {k: v for k, v in arrays.items() if k != "logits"} for role, arrays in sets.items()}
    one, other = (evaluate_arrays(**arrays(which, head=module.head)) for which in (sets, without))
    pd.testing.assert_frame_equal(scores_of(one), scores_of(other), **TOLERANCE)


def test_without_a_head_detectors_that_need_it_are_left_out_with_the_reason(sets):
    results = evaluate_arrays(**arrays(sets, detectors=None))
    assert {"msp", "energy", "knn", "mahalanobis"} <= set(results.detectors)
    reasons = results.run.not_applicable
    assert "no head was given" in reasons["react"]
    assert "images" in reasons["odin"]
    assert "hidden" in reasons["lard"] or "layer" in reasons["lard"]


def test_logits_alone_are_enough_for_detectors_of_logits(sets):
    logits = {role: {"logits": arrays["logits"]} for role, arrays in sets.items()}
    results = evaluate_arrays(id=logits[Role.ID], ood=logits[Role.OOD])
    assert {"msp", "energy", "max_logit", "gen"} <= set(results.detectors)
    assert "features" in results.run.not_applicable["knn"]
    assert results.value("auroc", dataset="ood", detector="msp") > 0.9


def test_features_alone_are_enough_for_detectors_of_features(sets):
    features = {role: {k: arrays[k] for k in ("features", "labels")} for role, arrays in sets.items()}
    results = evaluate_arrays(id=features[Role.ID], ood=features[Role.OOD], train=features[Role.TRAIN])
    assert {"knn", "mahalanobis"} <= set(results.detectors)
    assert "logits" in results.run.not_applicable["msp"]
    # Without logits nobody has predicted anything: no accuracy, and nothing that is made of right and wrong.
    assert not results.table["metric"].str.contains("accuracy|id_auroc|der|oscr|aurc").any()
    assert "accuracy of 'id' could not be computed, because the images have no predictions" in results.run.notes
    assert any("training images have no predictions" in note for note in results.run.notes)


def write(folder: Path, kind: str, name: str, content) -> Path:
    plain = {key: np.asarray(value) for key, value in content.items()}
    path = folder / f"{name}.{kind}"
    if kind == "npz":
        np.savez(path, **plain)
    elif kind == "npy":
        path = folder / name
        path.mkdir()
        for key, value in plain.items():
            np.save(path / f"{key}.npy", value)
    elif kind == "parquet":
        columns = {key: list(value) for key, value in plain.items() if key != "class_names"}
        if "class_names" in plain:
            columns["groups"] = [str(plain["class_names"][group]) for group in plain["groups"]]
        pd.DataFrame(columns).to_parquet(path)
    else:
        save_file({k: torch.from_numpy(v).contiguous() for k, v in plain.items() if v.dtype.kind != "U"}, path)
    return path


@pytest.mark.parametrize("kind", ["npz", "npy", "parquet", "safetensors"])
def test_files_give_what_arrays_give(module, sets, tmp_path, kind):
    used = {role: sets[role] for role in (Role.TRAIN, Role.ID, Role.OOD)}
    files = {role: write(tmp_path, kind, str(role), content) for role, content in used.items()}
    chosen = {"detectors": [MSP(), Energy(), Mahalanobis()]}
    made = evaluate_arrays(train=files[Role.TRAIN], id=files[Role.ID], ood={"far": files[Role.OOD]}, **chosen)
    expected = evaluate_arrays(train=sets[Role.TRAIN], id=sets[Role.ID], ood={"far": sets[Role.OOD]}, **chosen)
    np.testing.assert_allclose(made.table["value"][:6], expected.table["value"][:6])
    assert np.allclose(np.sort(made.scores["mahalanobis"]), np.sort(expected.scores["mahalanobis"]))
    if kind != "safetensors":  # which holds no text
        assert made.dataset("far").class_names == expected.dataset("far").class_names


@pytest.mark.parametrize("form", ["linear", "pair", "mapping", "npz", "safetensors"])
def test_a_head_is_taken_in_every_form(module, sets, tmp_path, form):
    weight, bias = module.head.weight, module.head.offset
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0])
    linear.load_state_dict({"weight": weight, "bias": bias})
    np.savez(tmp_path / "head.npz", weight=weight.numpy(), bias=bias.numpy())
    save_file({"weight": weight.contiguous(), "bias": bias.contiguous()}, tmp_path / "head.safetensors")
    forms = {
        "linear": linear,
        "pair": (weight.numpy(), bias.numpy()),
        "mapping": {"weight": weight, "bias": bias},
        "npz": tmp_path / "head.npz",
        "safetensors": tmp_path / "head.safetensors",
    }
    results = evaluate_arrays(**arrays(sets, head=forms[form]))
    assert not results.run.not_applicable


def test_a_wrong_head_is_not_used(module, sets):
    wrong = Head(module.head.weight.flip(0), module.head.offset)
    with pytest.warns(UserWarning, match="differ from those that the head computes"):
        results = evaluate_arrays(**arrays(sets, head=wrong))
    assert "differ from those that the head computes" in results.run.not_applicable["react"]
    assert "msp" in results.detectors


@given(st.lists(st.sampled_from(["cat", "dog", "eel"]), min_size=20, max_size=20))
def test_groups_may_be_names(groups):
    logits = torch.linspace(-1, 1, 60).reshape(20, 3)
    results = evaluate_arrays(id={"logits": logits * 3}, ood={"logits": logits, "groups": groups}, detectors=[MSP()])
    assert results.dataset("ood").class_names == tuple(sorted(set(groups)))
    found = results.scores[results.scores["dataset"] == "ood"]
    names = sorted(set(groups))
    assert [names[group] for group in found["group"]] == groups


pytestmark = pytest.mark.filterwarnings("ignore::oodlit.results.FindingWarning")
LOGITS = torch.zeros(4, 3) + torch.arange(3.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"id": {"logit": LOGITS}}, "'logit'; did you mean 'logits'"),
        ({"id": {"labels": [1]}}, r"features or logits .*, or as a folder of .npy files; got labels"),
        ({"id": {"logits": LOGITS, "labels": [1, 2]}}, r"number of images, got \{'logits': 4, 'labels': 2\}"),
        ({"id": {"logits": LOGITS, "labels": [0.5] * 4}}, "integers"),
        ({"id": {"logits": LOGITS[0]}}, r"got \(3,\)"),
        ({"id": {"logits": LOGITS.long()}}, "floating point"),
        ({"id": {"logits": LOGITS / LOGITS.roll(1, 1)}}, "NaN or infinite values, first at '00000000'"),
        ({"id": {"logits": LOGITS, "keys": ["a", "b", "a", "c"]}}, "'a' occurs twice"),
        ({"id": {"logits": LOGITS}, "ood": {"far": {"logits": LOGITS[:, :2]}}}, "one backbone"),
        ({"id": {"logits": LOGITS}, "ood": {}}, "^ood: .* empty mapping"),
        ({"id": {"logits": LOGITS}, "unit_tests": {}}, "^unit_tests: .* empty mapping"),
        ({"id": {}}, "folder of .npy files; got no arrays"),
        ({"id": {"logits": LOGITS}, "head": (torch.eye(3),)}, r"a pair .*; got 1"),
        ({"id": {"logits": LOGITS, "labels": "nowhere.npy"}}, "'id': nowhere.npy does not exist; .* folder of arrays"),
        ({"id": __file__}, r"test_arrays\.py: expected a folder, or a file with suffix \.npy, .*; got \.py"),
        ({"id": {"features": LOGITS}, "ood": None, "head": torch.nn.Linear(5, 2)}, "computes 2 logits from 5 features"),
        ({"id": "nowhere.npz"}, "does not exist"),
        ({"id": {"logits": LOGITS, "labels": [7] * 4}, "detectors": [MSP()]}, "label 7"),
        (
            {"id": {"features": LOGITS}, "ood": None, "train": {"features": LOGITS}},
            r"'train': missing labels of the training images; .*labels: FILE\} in YAML, .*'labels': .* in Python",
        ),
        (
            {"id": {"features": LOGITS}, "ood": None, "head": np.ones((3, 5))},
            r"head.weight has shape \(3, 5\), expected \(classes, features\): pass weight\.T",
        ),
        (
            {"id": {"features": LOGITS}, "ood": None, "train": {"features": LOGITS, "labels": [-1] * 4}},
            "label of this image to be at least 0, got -1",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_one_line(given, message):
    with pytest.raises(OodlitError, match=message) as caught:
        evaluate_arrays(**({"ood": {"far": {"logits": LOGITS}}, "detectors": None} | given))
    assert "\n" not in str(caught.value)


def test_objects_are_not_unpickled(tmp_path):
    np.savez(tmp_path / "bad.npz", logits=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match=r"Arrays of Python objects are not supported"):
        evaluate_arrays(id=tmp_path / "bad.npz")


def test_a_dictionary_without_tensors_is_named(tmp_path):
    torch.save({"labels": [1, 2]}, tmp_path / "a.pt")
    with pytest.raises(DataError, match=r"a\.pt: cannot read arrays \(.*, got a dict without tensors\)"):
        evaluate_arrays(id={"logits": LOGITS, "labels": tmp_path / "a.pt"})


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(DataError, match=r"bad\.parquet"):
        evaluate_arrays(id=tmp_path / "bad.parquet")


def test_lists_of_different_lengths_are_refused(tmp_path):
    pd.DataFrame({"logits": [[1.0, 2.0], [1.0, 2.0, 3.0], [1.0]]}).to_parquet(tmp_path / "odd.parquet")
    with pytest.raises(DataError, match="lists of"):
        evaluate_arrays(id=tmp_path / "odd.parquet")


def test_results_are_written_like_those_of_every_run(sets, tmp_path):
    with pytest.warns(UserWarning, match="'odin' is skipped"):
        evaluate_arrays(**arrays(sets, detectors=[MSP(), ODIN()], out=tmp_path / "run"))
    assert Results.load(tmp_path / "run").detectors == ("msp",)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["backbone"]["name"] == "recorded outputs"
    assert (tmp_path / "run" / "report.html").is_file()


def test_no_gate_is_made_of_a_run_without_images(module, sets, tmp_path):
    evaluate_arrays(**arrays(sets, detectors=[MSP()], out=tmp_path / "run"))
    with pytest.raises(InvalidArgumentError, match="read recorded features or logits instead of images"):
        Gate.load(tmp_path / "run", detector="msp", model=module)


def test_it_is_a_public_name():
    assert oodlit.evaluate_arrays is evaluate_arrays


def described(folder: Path, sets, module, **more) -> Path:
    for role in (Role.TRAIN, Role.ID, Role.OOD):
        write(folder, "npz", str(role), sets[role])
    np.savez(folder / "head.npz", weight=module.head.weight.numpy(), bias=module.head.offset.numpy())
    content = {"id": "id.npz", "train": "train.npz", "ood": {"far": "ood.npz"}, "head": "head.npz"} | more
    path = folder / "run.yaml"
    path.write_text(json.dumps(content))  # which is YAML as well
    return path


def test_the_command_line_takes_a_file_of_files(module, sets, tmp_path, capsys):
    path = described(tmp_path, sets, module)
    words = [
        "evaluate",
        "--features",
        str(path),
        "--detectors",
        "[MSP,Mahalanobis,ODIN]",
        "--out",
        str(tmp_path / "run"),
    ]
    assert main(words) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Not applicable: ODIN" in told
    assert "forward passes" not in told  # nothing is paid for what does not apply
    results = Results.load(tmp_path / "run")
    assert results.detectors == ("msp", "mahalanobis")
    expected = evaluate_arrays(
        train=sets[Role.TRAIN], id=sets[Role.ID], ood={"far": sets[Role.OOD]}, detectors=[MSP(), Mahalanobis()]
    )
    found = results.scores.set_index("key")["mahalanobis"].drop(index=[])
    assert np.allclose(found.sort_index(), expected.scores.set_index("key")["mahalanobis"].sort_index())


def test_without_detectors_the_command_line_takes_all_that_apply(module, sets, tmp_path, capsys):
    path, out = described(tmp_path, sets, module), tmp_path / "run"
    assert main(["evaluate", "--features", str(path), "--out", str(out), "--fail-if", "mps: fpr95 > 1"]) == 2
    assert "unknown detector 'mps'; did you mean 'msp'" in " ".join(capsys.readouterr().err.split())
    assert main(["evaluate", "--features", str(path), "--out", str(out), "--fail-if", "msp: fpr95 > 1"]) == 0
    found = Results.load(out)
    expected = evaluate_arrays(
        train=sets[Role.TRAIN], id=sets[Role.ID], ood={"far": sets[Role.OOD]}, head=tmp_path / "head.npz"
    )
    assert found.detectors == expected.detectors
    assert {"msp", "mahalanobis", "knn"} <= set(found.detectors)
    assert found.run.not_applicable == expected.run.not_applicable


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"odd": "far.npz"}, "did you mean 'ood'"),
        ({"id": 3}, "expected id to be the path of a file, or files by name, such as {features: a.npy, logits: b.npy}"),
        ({"id": {"features": 3}}, "expected id.features to be the path of a file; got 3"),
        ({"head": 3}, "or files by name, such as {weight: w.npy, bias: b.npy}; got 3"),
        ({"ood": ["ood.npz"]}, "expected ood to be the path of a file, or files by name, such as {far: far.npz}; got"),
        ({"id": "nowhere.npz"}, "nowhere.npz does not exist"),
        ({"ood": {"far": ["ood.npz"]}}, "expected ood.far to be"),
    ],
)
def test_an_invalid_description_is_an_error(module, sets, tmp_path, capsys, more, message):
    path = described(tmp_path, sets, module, **more)
    assert main(["evaluate", "--features", str(path), "--detectors", "[MSP]", "--out", str(tmp_path / "run")]) != 0
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("option", "value"), [("head", "fc"), ("weights", "none")])
def test_options_of_a_network_are_refused_for_features(module, sets, tmp_path, capsys, option, value):
    path = described(tmp_path, sets, module)
    assert main(["evaluate", "--features", str(path), f"--{option}", value, "--out", str(tmp_path / "run")]) == 2
    assert f"recorded features have no network; omit --{option}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--features", "run.yaml", "--backbone", "resnet18"], "omit --backbone"),
        (["--backbone", "resnet18"], "missing required option: --data"),
        ([], "missing required options: --backbone, --data"),
    ],
)
def test_features_take_the_place_of_backbone_and_data(capsys, words, message):
    assert main(["evaluate", *words, "--detectors", "[MSP]"]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_nothing_is_printed(sets, capfd):
    levels = {name: logging.getLogger(name).level for name in LIGHTNING_LOGGERS}
    evaluate_arrays(id=sets[Role.ID], ood=sets[Role.OOD], detectors=["MSP"])
    assert capfd.readouterr() == ("", "")
    assert {name: logging.getLogger(name).level for name in LIGHTNING_LOGGERS} == levels


def test_a_transposed_head_is_named_with_both_shapes(sets, module):
    weight, bias = module.head.weight, module.head.offset
    shapes = rf"weight of shape \({weight.shape[1]}, {weight.shape[0]}\) and bias of shape \({weight.shape[0]},\)"
    with pytest.raises(InvalidArgumentError, match=rf"expected weight of shape \(classes, features\) .*got {shapes}"):
        evaluate_arrays(id=sets[Role.ID], ood=sets[Role.OOD], head=(weight.T, bias))
