"""Exported programs refuse images that nobody can score, in every runtime, whatever a network makes of them."""

import json
import math
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def contents(file: Path) -> bytes:
    """All bytes of a program, unpacked."""
    if not zipfile.is_zipfile(file):
        return file.read_bytes()
    with zipfile.ZipFile(file) as archive:
        return b"".join(map(archive.read, archive.namelist()))


@pytest.mark.integration
def test_an_image_with_a_pixel_that_is_no_number_is_refused(tmp_path: Path) -> None:
    """One pixel of the first image, all of the second one; the others are as they were."""
    command = [sys.executable, "-m", "tests.gate.pooled_script", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    assert len(told) == 6
    for program, of in told.items():
        clean = of["clean"]
        assert any(clean["accepted"][:2]), program
        for value in ("nan", "inf", "-inf"):
            broken = of[value]
            assert broken["accepted"] == [False, False, *clean["accepted"][2:]], (program, value)
            assert all(math.isnan(score) for score in broken["score"][:2]), (program, value)
            assert broken["score"][2:] == pytest.approx(clean["score"][2:], rel=1e-5), (program, value)
            refused = "finite values after the transform, got NaN or infinity in 1 image (first positions: 0)"
            assert refused in of[f"{value} in Python"], (program, value)
        content = contents(tmp_path / program)
        for text in (str(ROOT), sys.prefix, "site-packages", ".py", "self.head(self.features(images))"):
            assert text.encode() not in content, (program, text)
