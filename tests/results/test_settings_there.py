"""A published figure stands beside ours only if the detector was set as it is here, as far as the table says how."""

import math

import pandas as pd
import pytest

from oodlit.detectors import KNN, ViM, detectors
from oodlit.detectors.contract.class_paths import parameters_of
from oodlit.detectors.contract.saving import detector_to_config
from oodlit.results import Results
from oodlit.results.published import NINCO, published_tables
from oodlit.results.published.table import PublishedTable
from tests.results.published_support import ninco_run

IMAGENET = 1_281_167
FITTED = {"reads": "features", "is_fitted": True, "cost": "bank", "tuned": ""}


@pytest.fixture(scope="module")
def knn() -> Results:
    return ninco_run(("knn",))


def row(results: Results, record: dict[str, object], table: str = "ninco", **options: str) -> pd.Series:
    """The mean AUROC, or that of near OOD sets, of the only detector of a run with more in its record."""
    told = results.with_record(type(results.run).of(results.run.entries() | record))
    frame = told.against(table, **options)
    (found,) = frame[frame["metric"].isin(["mean_auroc", "auroc"]) & frame["dataset"].isin(["ninco", "near"])].index
    return frame.loc[found]


def settings(detector: object) -> dict[str, object]:
    return {"detector_settings": {"knn": detector_to_config(detector)}}


@pytest.mark.parametrize(
    ("detector", "train_images", "reason"),
    [
        (KNN(k=1000), IMAGENET, ""),
        (KNN(k=1000), 0, ""),  # an earlier fit: the run does not say of how many images
        (KNN(), IMAGENET, ""),  # by the size of the bank it is 1000
        (KNN(), 0, "KNN has k=1000 in the table, but k=None in this run"),
        (KNN(k=10), IMAGENET, "KNN has k=1000 in the table, but k=10 in this run"),
        (
            KNN(k=10, bank_size=12_811),
            IMAGENET,
            "KNN has k=1000, bank_size=None in the table, but k=10, bank_size=12811 in this run",
        ),
        (KNN(k=1000), 50_000, "KNN is fitted on 1,281,167 images in the table, but on 50,000 in this run"),
    ],
    ids=repr,
)
def test_another_setting_is_no_comparison(knn, detector, train_images, reason) -> None:
    record = settings(detector) | {"data": {"train_images": train_images}, "overview": {"knn": FITTED}}
    found = row(knn, record)
    assert found["reason"] == reason
    assert math.isnan(found["difference"]) is bool(reason)
    assert pd.isna(found["rank"]) is bool(reason)
    assert found["published"] == NINCO.value("KNN", "ninco", "mean_auroc", model="ResNet50")


def test_settings_that_nobody_wrote_down_are_no_comparison(knn) -> None:
    assert row(knn, {"detector_settings": {}})["reason"] == "run.json does not contain the settings of knn"


def test_a_board_that_does_not_state_them_is_no_comparison() -> None:
    sets = {"ssb_hard": 49_000, "inaturalist": 10_000, "textures": 5_160, "openimage_o": 15_869}
    run = ninco_run(("knn",), n_id=45_000, ood=sets)
    found = row(run, settings(KNN(k=50)), "openood_imagenet1k", model="ResNet50")
    assert found["reason"].startswith("KNN: the leaderboard does not state the settings")
    assert math.isnan(found["difference"])


def test_models_can_have_settings_of_their_own() -> None:
    """Zero-shot CLIP is compared with its text embeddings, classifiers with means of training images."""
    assert NINCO.settings_of("RCos", "ViT-B-384") == {"concepts": "means", "temperature": 1.0}
    assert NINCO.settings_of("RCos", "clip-ViT-L-336") == {"concepts": "head", "temperature": 1.0}
    assert NINCO.settings_of("MSP", "clip-ViT-L-336") == {}
    zero_shot = {figure.model for figure in NINCO.figures()} & NINCO.settings_of_models.keys()
    assert len(zero_shot) == 2


@pytest.mark.parametrize("table", published_tables().values(), ids=published_tables())
def test_settings_are_those_of_the_class(table: PublishedTable) -> None:
    """Where figures can stand beside ours, every detector that can be set says how it was, or that nobody knows."""
    kinds = {form: kind for kind in detectors().values() for form in table.printed_as(kind.__name__)}
    stated = [table.settings, *table.settings_of_models.values()]
    for form, given in ((form, given) for part in stated for form, given in part.items()):
        assert isinstance(given, str) or set(given) <= set(parameters_of(kinds[form])), form
        assert given, form
    can_be_compared = table.protocol.mean and any(
        table.protocol.sets_of(figure.dataset) for figure in table.figures() if figure.detector
    )
    if can_be_compared:
        assert {form for form, kind in kinds.items() if parameters_of(kind)} <= set(table.settings)


def test_the_default_space_of_vim_is_that_of_the_authors() -> None:
    assert NINCO.settings_of("ViM", "ResNet50") == {"dim": ViM().settings["dim"]}
