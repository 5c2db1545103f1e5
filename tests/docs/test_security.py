"""What SECURITY.md says of files from somebody else is so."""

import ast
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn
from torchvision import transforms

import oodlit
from oodlit.backbones.recipe import made_from
from oodlit.cli.main import main
from oodlit.datamodules.decode import FORMATS, MAX_PIXELS
from oodlit.datamodules.shards import open_files
from oodlit.datamodules.shards.members import MAX_MEMBER_BYTES
from oodlit.datamodules.shards.remote import PROTOCOLS
from oodlit.detectors import MSP, FitOrigin, load, save
from oodlit.detectors.contract import saving
from oodlit.errors import InvalidArgumentError
from oodlit.gate import rebuilding as gate_network
from oodlit.gate.gate_record import GateBackbone
from oodlit.module import OODModule
from tests.docs.pages import ROOT

TEXT = " ".join((ROOT / "SECURITY.md").read_text(encoding="utf-8").split())
PACKAGE = Path(oodlit.__file__).parent
EVIL = "from pathlib import Path\nPath('SEEN').touch()\nclass Thing: ...\ndef step(image): return image\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a module that leaves a file where it is imported, and that is found."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "module_that_is_seen.py").write_text(EVIL)
    yield tmp_path
    sys.modules.pop("module_that_is_seen", None)


def _calls() -> Iterator[tuple[str, str, ast.Call]]:
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                yield file.relative_to(PACKAGE).as_posix(), ast.unparse(node.func), node


def test_no_pickle_is_read_from_a_file() -> None:
    calls = list(_calls())
    loads = {(file, name) for file, name, _ in calls if re.search(r"(pickle|joblib|dill|shelve)\.\w*load", name)}
    assert loads == {("datamodules/failures.py", "pickle.loads")}  # of what was pickled in the line before
    seen = 0
    for file, name, call in calls:
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        if name in {"torch.load", "timm.models.load_state_dict"}:
            assert given.get("weights_only") == "True", file
            seen += 1
        elif name == "np.load":
            assert given.get("allow_pickle") == "False", file
            seen += 1
        elif name in {"eval", "exec", "os.system"} or given.get("shell") == "True" or "extractall" in name:
            pytest.fail(f"{file}: {name}")
        elif name.startswith("yaml."):
            assert name in {"yaml.safe_load", "yaml.safe_dump", "yaml.SafeLoader"} or name.endswith("Error"), file
    assert seen >= 5


def test_tags_of_yaml_make_no_objects(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "run.yaml").write_text("backbone: !!python/object/apply:os.system ['touch SEEN']\n")
    assert main(["evaluate", "--config", "run.yaml"]) == 2
    assert "is not valid YAML" in capsys.readouterr().err
    assert not (folder / "SEEN").exists()


def test_a_configuration_is_code(folder: Path) -> None:
    """Said first: naming a module of the folder imports it."""
    assert "can run any code that can be imported" in TEXT
    main(["evaluate", "--backbone={class_path: module_that_is_seen.Thing}", "--detectors=[MSP]"])
    assert (folder / "SEEN").exists()


def test_a_fit_imports_the_module_that_it_names_and_makes_detectors_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "public_path", lambda kind: "module_that_is_seen.Thing")
    save({"msp": MSP()}, folder / "fit", FitOrigin("weights=x"))
    assert "module_that_is_seen" in (folder / "fit" / "detectors.json").read_text()
    with pytest.raises(InvalidArgumentError, match=r"to be a subclass of oodlit\.detectors"):
        load(folder / "fit")
    assert (folder / "SEEN").exists()
    assert "its module is imported, and only a subclass of `Detector` is created" in TEXT


def test_a_recipe_of_a_transform_may_name_any_function(folder: Path) -> None:
    assert made_from({"function": "module_that_is_seen.step"})("image") == "image"
    assert "functions of any module, which are then called with images" in TEXT


def test_a_transform_that_is_given_is_taken_in_place_of_the_recorded_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FitOrigin, "check", lambda *_, **__: None)  # whether it fits is tested with the gate
    module = OODModule(nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), transform=transforms.ToTensor())
    module.probe(torch.rand(2, 3, 2, 2))
    record = GateBackbone(
        name=module.name,
        arguments=module.arguments,
        transform="a step",
        transform_recipe={"function": "module_that_is_seen.step"},
        input_shape=[3, 2, 2],
        fingerprint="weights=x",
        width=12,
        num_classes=2,
    )
    files = gate_network.NetworkFiles(folder)
    gate_network.load_module(record, model=module.network, transform=transforms.ToTensor(), files=files)
    assert not (folder / "SEEN").exists()


def test_limits_are_those_of_the_code() -> None:
    assert f"larger than {MAX_MEMBER_BYTES // 2**20} MiB" in TEXT
    assert f"more than {MAX_PIXELS // 10**6} million pixels" in TEXT
    assert len(set(FORMATS) - {"AVIF"}) == 8
    assert "in eight formats, and in AVIF" in TEXT
    assert not {"EPS", "PDF"} & set(FORMATS)
    assert {protocol.removesuffix("s") for protocol in PROTOCOLS} == {"http", "s3", "g", "gc", "hf", "az", "abf"}


def test_the_tests_that_it_names_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", TEXT)
    assert len(set(named)) >= 9
    assert all((ROOT / file).is_file() for file in named)


def test_links_in_folders_of_images_are_followed(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "a.txt").write_bytes(b"text")
    (folder / "images").mkdir()
    (folder / "images" / "linked").symlink_to(folder / "elsewhere")
    (file,) = open_files(folder / "images")
    assert (file.path, file.read()) == ("linked/a.txt", b"text")
    assert "may contain links; the files that they name are read and copied" in TEXT


def test_names_stand_in_tables_as_they_are() -> None:
    name = '=HYPERLINK("https://example.org")'
    table = pd.DataFrame({"ood_class": [name]}).to_csv(index=False)
    assert pd.read_csv(io.StringIO(table))["ood_class"].tolist() == [name]
    assert "import such columns as text" in TEXT


def test_other_statements_have_their_tests() -> None:
    """Each where its subject is tested."""
    for file, name in {
        "datamodules/test_shards_damage.py": "is a link, device or sparse file",
        "datamodules/test_shards_reader.py": "pipe:cat missing.tar",
        "datamodules/test_shards_files.py": "is a link",
        "recorded/test_arrays.py": "test_objects_are_not_unpickled",
        "report/test_page.py": "<script>alert(1)</script>",
        "cli/test_errors.py": "test_only_a_subclass_of_the_requested_type_is_called",
        "module/test_recipe.py": "test_recipes_call_nothing_but_transforms",
    }.items():
        assert name in (ROOT / "tests" / file).read_text(encoding="utf-8"), file
