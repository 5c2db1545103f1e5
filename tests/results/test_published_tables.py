"""Published tables are read as printed, name detectors that exist, and say by which rule they were formed."""

from pathlib import Path

import pytest
import timm
import torch

import oodlit.results.published
from oodlit.backbones.facts import published_as
from oodlit.datamodules import descriptions
from oodlit.datamodules.sets.ninco import NINCO as NINCO_SET
from oodlit.datamodules.sets.ninco import NINCO_POPULAR, NINCO_UNIT_TESTS
from oodlit.detectors import detectors
from oodlit.errors import UnknownNameError
from oodlit.results.glossary import entry_of
from oodlit.results.published import (
    ADASCALE,
    HUMAN_CENTRIC,
    MAHALANOBIS_PLUS_PLUS,
    NINCO,
    NINCO_FIRST_RELEASE,
    OPENOOD,
    TIMM,
    PublishedTable,
    published_table,
    published_tables,
)
from oodlit.results.published.protocol import weights

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
    assert all(figure.ood_class == "" for figure in figures)
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
    others = {"cood_curves.csv.gz", "ninco_weights.csv"}  # no figures
    files = {file.name for file in FOLDER.glob("*.csv*")} - others
    tables = published_tables().values()
    assert files == {name for table in tables for name in (table.file, table.class_file) if name}
    assert all((FOLDER / name).stat().st_size < 300_000 for name in files)


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
        (NINCO, "ResNet50", "ReAct", "ninco_popular", "mean_fpr95", 97.6),
        (HUMAN_CENTRIC, "VGG19", "MSP", "textures", "der95", 22.22),
        (HUMAN_CENTRIC, "ResNet-50", "KNN", "average", "der99", 69.22),
        (TIMM, "resnet50.a1_in1k, 224 px, crop 0.95", "", "imagenet_val", "accuracy", 80.382),
        (MAHALANOBIS_PLUS_PLUS, "mean of 44 models", "Maha++", "ninco", "fpr95", 42.9),
        (MAHALANOBIS_PLUS_PLUS, "mean of 44 models", "ViM", "ninco", "fpr95", 54.9),
    ],
    ids=lambda value: value.name if isinstance(value, PublishedTable) else str(value),
)
def test_figures_as_printed(
    table: PublishedTable, model: str, detector: str, dataset: str, metric: str, percent: float
) -> None:
    assert table.value(detector, dataset, metric, model=model) == round(percent / 100, 7)


def test_numbers_of_figures_are_those_of_the_sources() -> None:
    """OpenOOD: 125 rows of two figures and the accuracies of seven. NINCO: (26 x 11 + 2 x 2) x (4 + 1), 29 x 12 x 2.

    Human-centric: 8 x 9 x 9 x 2. timm: 1556 networks on five sets; one cell of imagenet_a is empty.
    """
    counts = {name: len(table.figures()) for name, table in published_tables().items()}
    assert counts == {
        "adascale": 18,
        "human_centric": 1296,
        "openood_imagenet1k": 257,
        "ninco": 1450,
        "ninco_first_release": 696,
        "mahalanobis_plus_plus": 7,
        "timm": 7779,
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


def test_figures_of_classes_are_shares_of_classes_that_exist() -> None:
    known = {info.name: info.classes for info in (NINCO_SET, NINCO_UNIT_TESTS, NINCO_POPULAR)}
    for table, count in ((NINCO, 3202), (NINCO_FIRST_RELEASE, 29 * 12 * (46 + 17 + 4) * 2)):
        figures = table.class_figures()
        assert len({(*figure[:4], figure.ood_class) for figure in figures}) == len(figures) == count
        assert all(0 <= figure.value <= 1 for figure in figures)
        assert {figure.metric for figure in figures} <= {"fpr95", "auroc"}
        changed = {f.ood_class for f in figures if f.n != known[f.dataset][f.ood_class]}
        assert changed == ({"haemulon_sciurus"} if table is NINCO_FIRST_RELEASE else set())


def test_the_fpr_of_a_class_is_a_number_of_its_images() -> None:
    """Which is where the numbers of images that stand beside the figures come from."""
    for table, digits in ((NINCO, 0.0500001), (NINCO_FIRST_RELEASE, 0.0000501)):
        for figure in table.class_figures():
            if figure.metric == "fpr95":
                nearest = round(figure.value * figure.n) / figure.n
                assert abs(100 * (figure.value - nearest)) <= digits, figure


def test_the_mean_of_the_classes_of_the_first_release_is_the_mean_of_the_table() -> None:
    classes: dict[tuple[str, str, str], list[float]] = {}
    for figure in NINCO_FIRST_RELEASE.class_figures():
        if figure.dataset == "ninco":
            classes.setdefault((figure.model, figure.detector, f"mean_{figure.metric}"), []).append(figure.value)
    means = {(f.model, f.detector, f.metric): f.value for f in NINCO_FIRST_RELEASE.figures()}
    assert classes.keys() == means.keys()
    assert all(len(classes[key]) == 46 for key in means)
    assert all(sum(classes[key]) / 46 == pytest.approx(means[key], abs=2e-6) for key in means)


@pytest.mark.parametrize(
    ("model", "detector", "dataset", "ood_class", "percent"),
    [
        ("ViT-B-384-21k", "MSP", "ninco", "aphanizomenon_flosaquae", 95.7),
        ("ViT-B-384-21k", "MSP", "ninco_unit_tests", "horizontal_stripes", 0.2),
        ("EffNetb7-ns", "ViM", "ninco_unit_tests", "Gaussian", 37.8),
        ("Swinv2-B-256-21k", "Mahalanobis", "ninco_popular", "Places", 36.6),
    ],
)
def test_figures_of_classes_as_printed(model: str, detector: str, dataset: str, ood_class: str, percent: float) -> None:
    found = [f for f in NINCO.class_figures() if f[:3] == (model, detector, dataset) and f.ood_class == ood_class]
    assert [f.value for f in found] == [round(percent / 100, 7)]


PRINTED_TOP1 = {
    "ViT-B-384-l2b-12k": 87.2, "ViT-B-384-oai-12k": 87.0, "ViT-B-384-l2b": 86.6, "ViT-B-384-oai": 86.2,
    "ViT-B-384-21k": 86.0, "ViT-B-224-21k": 84.5, "Swinv2-B-256-21k": 86.3, "DeiT3-B-384-21k": 86.7,
    "DeiT3-B-224-21k": 85.7, "CnvNxt-B-21k": 86.3, "CnvNxt-T-21k": 84.1, "BiT-m": 82.3, "EffNetb7-ns": 86.8,
    "ViT-B-384": 81.1, "Swinv2-B-256": 84.6, "DeiT3-B-384": 85.1, "DeiT3-B-224": 83.8, "XCiT-M-224": 82.6,
    "XCiT-M-224-d": 84.3, "CnvNxt-B": 84.4, "EffNetb7": 84.9, "EffNet-B0": 77.7, "ResNet50": 80.4,
}  # fmt: skip
"""Table 8 of NINCO's paper."""


@pytest.mark.parametrize("printed", NINCO.weights)
def test_a_printed_model_is_built_as_in_the_paper(printed: str) -> None:
    arguments = NINCO.network(printed)
    network = torch.nn.Identity()
    network.pretrained_cfg = timm.get_pretrained_cfg(arguments["backbone"]).to_dict()  # type: ignore[assignment]
    found = published_as(network, arguments["transform"])
    assert found is not None
    assert NINCO.model_of(weights(**found)) == printed


def test_a_model_without_known_weights_is_named() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown timm network 'ResNet-50' of \w+; did you mean 'ResNet50'"):
        NINCO.network("ResNet-50")


def test_weights_of_a_printed_model_have_the_printed_accuracy() -> None:
    assert NINCO.weights.keys() == PRINTED_TOP1.keys()
    for printed, own in NINCO.weights.items():
        published = TIMM.value("", "imagenet_val", "accuracy", model=own)
        assert published is not None
        assert 100 * published == pytest.approx(PRINTED_TOP1[printed], abs=0.07), printed
    assert len(set(NINCO.weights.values())) == len(NINCO.weights)


@tables
def test_sets_of_a_protocol_are_sets_that_can_be_loaded(table: PublishedTable) -> None:
    printed = {figure.dataset for figure in (*table.figures(), *table.class_figures())}
    assert table.protocol.sets.keys() <= printed
    assert {name for dataset in printed for name in table.protocol.sets_of(dataset)} <= set(descriptions())
    assert set(table.protocol.images) <= set(descriptions())


def test_a_table_that_does_not_exist_is_an_error() -> None:
    assert published_table("timm") is TIMM
    with pytest.raises(UnknownNameError, match="did you mean 'ninco'"):
        published_table("nincoo")
