"""A new data set costs one file."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import oodlit
from tests.tiny_shards import tiny_image

FILE = """
from oodlit.datamodules.sets.description import DatasetDescription
from oodlit.datamodules.sets.ood import by_folder
from oodlit.roles import Role

BIRDS = DatasetDescription(
    name="birds", title="Birds", role=Role.OOD, layout="<class>/<file>.png", place=by_folder, expected_count=2
)
"""
CODE = """
import sys
from oodlit.cli.main import main
from oodlit.datamodules import describe, descriptions, set_stream
assert "birds" in descriptions()
assert main(["list", "datasets"]) == 0
assert main(["shards", "build", "birds", sys.argv[1], "--out", sys.argv[2]]) == 0
stream = set_stream(describe("birds"), sys.argv[2])
print(stream.class_names, [sample.group for sample in stream.source.read(0, 2)])
"""


@pytest.mark.integration
def test_one_file_makes_a_data_set(tmp_path: Path) -> None:
    package, source = tmp_path / "code" / "oodlit", tmp_path / "birds"
    shutil.copytree(Path(oodlit.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    sets = package / "datamodules" / "sets"
    (sets / "birds.py").write_text(FILE)
    for name in ("owl", "wren"):
        (source / name).mkdir(parents=True)
        (source / name / "1.png").write_bytes(tiny_image(0))
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(source), str(tmp_path / "shards")],
        cwd=tmp_path,  # the current folder comes before PYTHONPATH
        env=os.environ | {"PYTHONPATH": str(package.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "birds" in done.stdout.split("data sets")[0]
    assert "2 images of 'birds'" in " ".join(done.stdout.split())
    assert done.stdout.splitlines()[-1] == "('owl', 'wren') [0, 1]"
