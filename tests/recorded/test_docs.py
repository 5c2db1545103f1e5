"""docs/features.md is executed."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import yaml
from safetensors.numpy import save_file

from oodlit import Results, Role
from oodlit.cli.main import main
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.detectors import GEN, MSP, Energy
from tests.callbacks.support import make_module, make_streams, make_trainer
from tests.recorded.support import outputs_of

PAGE = (Path(__file__).parents[2] / "docs" / "features.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_the_python_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = make_module()
    sets = {role: outputs_of(module, role) for role in (Role.TRAIN, Role.ID, Role.OOD)}
    data = OODDataModule(make_streams())
    names = {"detectors": [MSP()], "others": [Energy(), GEN()], "module": module, "data": data, "pl": QuietLightning}
    for role in (Role.TRAIN, Role.ID, Role.OOD):
        names |= {f"{role}_{field}": sets[role][field] for field in ("features", "logits", "labels")}
    names["names_of_ood_classes"] = ["cat", "dog", "eel"] * 10
    make_trainer().predict(module, data, return_predictions=False)  # verifies the head
    names |= {"weight": module.head.weight, "bias": module.head.offset}
    cache, arrays = blocks("python")
    exec(compile(cache, "features.md", "exec"), names)
    exec(compile(arrays, "features.md", "exec"), names)
    assert (tmp_path / "features" / "cache.json").is_file()
    assert {"msp", "knn", "vim"} <= set(Results.load(tmp_path / "results").detectors)


class QuietLightning:
    """Lightning with a trainer that draws no bars."""

    @staticmethod
    def Trainer(callbacks):
        return make_trainer(*callbacks)


def test_the_file_of_files_of_the_page_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (file,) = blocks("yaml")
    content = yaml.safe_load(file)
    content["class_names"] = "names.txt"
    Path("names.txt").write_text("\n".join("abcdef"))
    Path("features.yaml").write_text(yaml.safe_dump(content))
    sets = {role: outputs_of(make_module(), role) for role in (Role.TRAIN, Role.ID, Role.OOD)}
    for name, role in (("val", Role.ID), ("head", None)):
        arrays = {"weight": np.ones((6, sets[Role.ID]["features"].shape[1]), "float32")} if role is None else sets[role]
        np.savez(f"{name}.npz", **{key: np.asarray(value) for key, value in arrays.items()})
    save_file(dict(np.load("head.npz")), "head.safetensors")
    for name in ("features", "logits", "labels"):
        np.save(f"{name}.npy", np.asarray(sets[Role.TRAIN][name]))
    torch.save({name: torch.as_tensor(sets[Role.OOD][name]) for name in ("features", "logits")}, "ninco.pt")
    columns = {name: list(np.asarray(sets[Role.OOD][name])) for name in ("features", "logits", "groups")}
    pd.DataFrame(columns).to_parquet("textures.parquet")
    assert main(["evaluate", "--features", "features.yaml", "--detectors", "[MSP, Mahalanobis]", "--out", "out"]) == 0
    assert {info.name for info in Results.load("out").datasets} == {"id", "train", "ninco", "textures"}
