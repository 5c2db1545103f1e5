"""Published tables are read as printed, name detectors that exist, and say by which rule they were formed."""

from pathlib import Path

import pytest

import oodlit.results.published
from oodlit.detectors import detectors
from oodlit.errors import UnknownNameError
from oodlit.results.glossary import entry_of
from oodlit.results.published import (
    ADASCALE,
    MAHALANOBIS_PLUS_PLUS,
    NINCO,
    NINCO_FIRST_RELEASE,
    OPENOOD,
    PublishedTable,
    published_tables,
)

FOLDER = Path(oodlit.results.published.__file__).parent
CLASSES = [kind.__name__ for kind in detectors().values()]
NO_CLASS = {"MDSEns", "Gram", "CombOOD", "NAC"}
"""Printed detectors that are none of oodlit's, or were not when this was written."""
tables = pytest.mark.parametrize("table", published_tables().values(), ids=published_tables())


@tables
def test_every_figure_is_a_share_of_a_known_metric(table: PublishedTable) -> None:
    figures = table.figures()
    places = [figure[:4] for figure in figures]
    assert len(set(places)) == len(places) > 0
    assert all(figure.model and figure.dataset for figure in figures)
    assert all(0 < figure.value < 1 for figure in figures)
    assert all(entry_of(figure.metric) is not None for figure in figures)


@tables
def test_every_table_says_whose_it_is_and_how_it_was_formed(table: PublishedTable) -> None:
    assert table.source
    assert table.tables
    assert table.rule
    assert table.url.startswith("https://")


@tables
def test_every_printed_name_is_one_detector(table: PublishedTable) -> None:
    owners: dict[str, list[str]] = {f.detector: [] for f in table.figures() if f.detector}
    for kind in CLASSES:
        for printed in table.printed_as(kind):
            owners[printed].append(kind)
    assert {name: kinds for name, kinds in owners.items() if len(kinds) > 1} == {}
    unknown = {name for name, kinds in owners.items() if not kinds}
    assert unknown <= NO_CLASS, f"{table.name}: name the class of {unknown - NO_CLASS} in `detectors`"
    assert set(table.detectors) <= set(owners)
    assert set(table.detectors.values()) <= {*CLASSES, ""}


def test_every_file_has_a_table_and_is_small() -> None:
    others = {"timm_accuracy.csv", "cood_rank_correlation.csv", "cood_settings.csv"}  # no tables of OOD detectors
    files = {file.name for file in FOLDER.glob("*.csv")} - others
    assert files == {table.file for table in published_tables().values()}
    assert all((FOLDER / name).stat().st_size < 100_000 for name in files)


@pytest.mark.parametrize(
    ("table", "model", "detector", "dataset", "metric", "percent"),
    [
        (OPENOOD, "ResNet50", "MSP", "near", "auroc", 76.02),
        (OPENOOD, "ResNet50", "MSP", "far", "auroc", 85.23),
        (OPENOOD, "ResNet50", "SCALE", "near", "auroc", 81.36),
        (OPENOOD, "ResNet50", "AdaSCALE-A", "far", "auroc", 97.27),
        (OPENOOD, "RegNet-Y-16GF", "MDS++", "near", "auroc", 86.29),
        (OPENOOD, "ViT-B/16", "WeiPer+KLD", "far", "auroc", 90.32),
        (OPENOOD, "ViT-B/16", "SHE", "full-spectrum far", "auroc", 73.96),
        (OPENOOD, "ViT-B/16", "", "id", "accuracy", 81.14),
        (NINCO, "ViT-B-384-21k", "MSP", "ninco", "mean_fpr95", 51.8),
        (NINCO, "ResNet50", "MSP", "ninco", "mean_fpr95", 72.4),
        (NINCO_FIRST_RELEASE, "ResNet50", "MSP", "ninco", "mean_fpr95", 73.4392),
        (ADASCALE, "ViT-B/16", "OptFS", "far", "auroc", 87.35),
        (ADASCALE, "Swin-B", "LTS", "far", "auroc", 44.80),
        (MAHALANOBIS_PLUS_PLUS, "mean of 44 models", "Maha++", "ninco", "fpr95", 42.9),
        (MAHALANOBIS_PLUS_PLUS, "mean of 44 models", "ViM", "ninco", "fpr95", 54.9),
    ],
    ids=str,
)
def test_figures_as_printed(
    table: PublishedTable, model: str, detector: str, dataset: str, metric: str, percent: float
) -> None:
    assert table.value(detector, dataset, metric, model=model) == round(percent / 100, 7)


def test_numbers_of_figures_are_those_of_the_sources() -> None:
    """OpenOOD: 125 rows of two figures and the accuracies of seven; NINCO: (26 x 11 + 2 x 2) x 4; later 29 x 12 x 2."""
    counts = {name: len(table.figures()) for name, table in published_tables().items()}
    assert counts == {
        "adascale": 18,
        "openood_imagenet1k": 257,
        "ninco": 1160,
        "ninco_first_release": 696,
        "mahalanobis_plus_plus": 7,
    }


def test_means_are_over_the_models_that_have_every_detector() -> None:
    models = NINCO.models()
    assert len(models) == 26
    assert not any(model.startswith("clip") for model in models)
    plain = [f.value for f in NINCO.figures() if f[1:4] == ("Cosine", "ninco", "mean_fpr95") and f.model in models]
    assert len(plain) == 26
    assert NINCO.value("Cosine", "ninco", "mean_fpr95") == pytest.approx(sum(plain) / 26, abs=1e-7)
    assert OPENOOD.models() == []
    assert OPENOOD.value("MSP", "near", "auroc") is None


def test_what_was_not_published_is_none_and_an_unknown_model_is_an_error() -> None:
    assert OPENOOD.value("NNGuide", "near", "auroc", model="ResNet50") is None
    assert OPENOOD.value("NECO", "near", "auroc", model="ResNet50") is None
    with pytest.raises(UnknownNameError, match="did you mean 'ResNet50'"):
        OPENOOD.value("MSP", "near", "auroc", model="ResNet5")


def test_forms_of_a_detector_belong_to_it() -> None:
    assert OPENOOD.printed_as("AdaSCALE") == ["AdaSCALE-A", "AdaSCALE-L"]
    assert OPENOOD.printed_as("AdaSCALEA") == ["AdaSCALE-A"]
    assert OPENOOD.printed_as("IODIN") == ["i-ODIN"]
    assert OPENOOD.printed_as("ODIN") == ["ODIN"]
    assert OPENOOD.printed_as("Mahalanobis") == ["MDS"]
