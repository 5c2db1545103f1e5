"""`oodlit export`: one format, printed or written."""

import re
from pathlib import Path

import pytest

from oodlit.cli.main import main
from oodlit.datamodules import descriptions
from oodlit.report import pairs_table
from oodlit.results import Results
from oodlit.results.views.bibtex import citation
from tests.report.problems import make_results
from tests.report.several_support import make_runs

RUN = {
    "references": {
        "msp": {
            "title": "A Baseline",
            "authors": "D. Hendrycks and K. Gimpel",
            "venue": "ICLR",
            "year": 2017,
            "url": "",
        }
    }
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_results(run=RUN, bootstrap=0).save(tmp_path / "run")
    return tmp_path / "run"


def test_formats(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(folder)]) == 0
    assert capsys.readouterr().out.startswith("| detector | near: FPR95 ↓ |")
    assert main(["export", str(folder), "--latex", "--detectors", "msp", "--out", str(tmp_path / "t.tex")]) == 0
    assert "\\begin{tabular}" in (tmp_path / "t.tex").read_text()
    assert main(["export", str(folder), "--csv", "--metrics", "auroc"]) == 0
    assert capsys.readouterr().out.startswith("detector,far: AUROC,far: AUROC best\n")


def test_operating_points(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(folder), "--prior", "0.01", "--intervals"]) == 0
    text = capsys.readouterr().out
    heads = ("threshold", "TPR", "accepted", "errors", "joint AUGRC ↓")
    assert text.startswith(f"| detector | {' | '.join(f'near: {head}' for head in heads)} | far: threshold |")
    points = Results.load(folder).operating_points("near", prior=0.01).set_index("detector").loc["msp"]
    errors = f"{100 * points.risk:.1f} [{100 * points.risk_low:.1f}, {100 * points.risk_high:.1f}]"
    start = f"| msp | {points.threshold:.4g} | {100 * points.tpr:.1f} | {100 * points.coverage:.1f} | {errors} | "
    augrc = re.search(re.escape(start) + r"[*]*([\d.]+)", text)
    assert augrc is not None
    assert len(augrc[1].strip("0.").replace(".", "")) == 3, "three significant digits"
    assert float(augrc[1]) == pytest.approx(100 * points.joint_augrc, rel=0.005)
    assert "Images: val n = 100, near n = " in text
    assert "They assume that 1 % of the images are OOD. Thresholds accept at least 95 % of the ID images." in text
    assert main(["export", str(folder), "--csv", "--prior", "0.5", "--max_risk", "0.001", "--detectors", "knn"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("knn,,,,,")
    assert main(["export", str(folder), "--latex", "--prior", "0.1", "--coverage", "0.5"]) == 0
    assert "Thresholds accept at least 50 \\% of the images." in capsys.readouterr().out
    assert "joint AUGRC" in Results.load(folder).to_latex(prior=0.1)
    assert main(["export", str(folder), "--coverage", "0.5"]) == 2
    assert "require --prior" in capsys.readouterr().err


def test_detectors_have_their_key_or_display_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(folder), "--csv", "--detectors", "KNN", "--detectors", "Msp"]) == 0
    assert [line.partition(",")[0] for line in capsys.readouterr().out.splitlines()[1:]] == ["knn", "msp"]


@pytest.mark.parametrize("names", ["KNN,Msp", "[KNN, Msp]"])
def test_names_are_separated_by_commas(names: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(folder), "--csv", "--detectors", names, "--metrics", "auroc,fpr95"]) == 0
    first, *rows = capsys.readouterr().out.splitlines()
    assert [row.partition(",")[0] for row in rows] == ["knn", "msp"]
    assert "AUROC" in first
    assert "FPR" in first


def test_names_separated_by_blanks_have_a_hint(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(folder), "--detectors", "KNN", "MSP"]) == 2
    assert "MSP does not exist; to choose detectors, write --detectors KNN,MSP" in " ".join(
        capsys.readouterr().err.split()
    )


def test_several_runs_make_one_table_whose_rows_are_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, results in make_runs(2, 2, 8).items():
        results.save(tmp_path / name)
    folders = [str(tmp_path / name) for name in ("model_00", "model_01")]
    assert main(["export", *folders, "--csv"]) == 0
    first, *rows = capsys.readouterr().out.splitlines()
    pairs = [f"model_0{model} with detector_0{detector}" for model in (0, 1) for detector in (0, 1)]
    assert [row.partition(",")[0] for row in rows] == pairs
    assert "ID-AUROC" not in first  # each network has its own predictions
    for folder, own in zip(folders, (rows[:2], rows[2:]), strict=True):
        alone = Results.load(folder).value("auroc", dataset="far", detector="detector_01")
        column = first.split(",").index("far: AUROC")
        assert own[1].split(",")[column] == f"{100 * alone:.1f}"
    best = [row.split(",")[first.split(",").index("far: AUROC best")] for row in rows]
    assert best[3] == "1"  # over all pairs: the better network and detector
    assert main(["export", *folders, "--latex", "--detectors", "detector_01"]) == 0
    assert "model\\_01 with detector\\_01 &" in capsys.readouterr().out
    assert main(["export", *folders, "--bibtex"]) == 2
    assert "expected one folder of results, got 2" in " ".join(capsys.readouterr().err.split())


def test_the_footnote_of_several_runs_names_the_columns_that_are_left_out() -> None:
    runs = make_runs(2, 2, 8)
    note = next(note for note in pairs_table(runs).notes if note.startswith("Not compared: "))
    assert note.startswith("Not compared: val: ID-AUROC (")
    left_out = [note for note in pairs_table(runs, metrics=["auroc", "oscr"]).notes if "Not compared" in note]
    assert left_out == []  # no column was left out


def test_runs_that_cannot_be_compared_make_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = make_runs(2, 2, 8).values()
    one.save(tmp_path / "one")
    other.recompute(tpr=0.9).save(tmp_path / "other")
    assert main(["export", str(tmp_path / "one"), str(tmp_path / "other")]) == 2
    assert "whose FPR can be compared between these runs, found none. Not compared: " in " ".join(
        capsys.readouterr().err.split()
    )


def test_bibtex_names_what_has_no_source(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(folder), "--bibtex"]) == 0
    text = capsys.readouterr().out
    assert "% msp\n@inproceedings{hendrycks2017baseline," in text
    assert "% No source is known for: knn, val, near, far, tests, noisy" in text


def test_one_format_at_a_time(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(folder), "--latex", "--csv"]) == 2
    assert "expected one format, got --latex, --csv" in capsys.readouterr().err
    assert main(["export", str(folder / "none")]) == 1
    assert "none" in capsys.readouterr().err


def test_the_citation_of_every_known_set_becomes_an_entry() -> None:
    texts = [text for about in descriptions().values() for text in about.citation.split("; protocol: ")]
    assert len(texts) >= 21
    assert [text for text in texts if citation(text, "") is None] == []
