"""`oodlit demo severity` from start to end, in this process."""

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from oodlit.cli.demos.severity import run_severity
from oodlit.datamodules import DigitPoolBenchmark
from oodlit.datamodules.benchmarks.digit_pool import ID_CLASSES, OTHERS, POOL_CLASSES
from oodlit.detectors import detectors
from oodlit.results import Results

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Folder and printed text of one run with a short training."""
    out = tmp_path_factory.mktemp("demo") / "out"
    console = Console(file=io.StringIO(), width=200)
    page = run_severity(out, epochs=4, console=console)
    assert page == out / "report.html"
    assert isinstance(console.file, io.StringIO)
    return out, console.file.getvalue()


def test_levels_fall(demo: tuple[Path, str]) -> None:
    results = Results.load(demo[0])
    assert {*results.detectors, *results.run.not_applicable} == set(detectors())
    curves = results.levels("digits_pool").pivot(index="detector", columns="level", values="auroc")
    assert (curves["s0"] > curves["s10"]).mean() > 0.9
    assert curves.loc["msp", "s0"] - curves.loc["msp", "s10"] > 0.1


def test_page_shows_curve_levels_and_pictures(demo: tuple[Path, str]) -> None:
    out, text = demo
    results, page = Results.load(out), (out / "report.html").read_text(encoding="utf-8")
    assert "digits_pool: from the easiest to the hardest classes" in page
    assert "data:image/png;base64," in page
    assert f"n = {results.run.pools['digits_pool'].test}" in text
    assert f"{100 * results.value('mean_auroc', dataset='digits_pool', detector='msp'):.1f}" in text


def test_pool_holds_turned_digits() -> None:
    data = DigitPoolBenchmark()
    pool = data.stream("digits_pool")
    assert len(POOL_CLASSES) == 4 * len(OTHERS) == len(pool.class_names)
    assert not set(ID_CLASSES) & set(OTHERS)
    pictures: dict[str, dict[str, np.ndarray]] = {}
    for sample, image in zip(
        pool.source.read(0, len(pool)),
        data.read_images([pool.full_key(s.key) for s in pool.source.read(0, len(pool))]).values(),
        strict=True,
    ):
        folder, name = sample.key.split("/")
        assert folder == pool.class_names[sample.group]
        pictures.setdefault(name, {})[folder] = np.asarray(image)
    for name, turned in pictures.items():
        assert len(turned) == 4, name
        digit = min(turned, key=len)
        for turns, suffix in ((1, " turned left"), (2, " upside down"), (3, " turned right")):
            np.testing.assert_array_equal(turned[digit + suffix], np.rot90(turned[digit], turns))
