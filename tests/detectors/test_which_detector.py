"""The table "Which detector when" is made of declarations, published figures and one measurement; none may go stale."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import final

import pytest
import torch
from scipy.stats import spearmanr

from oodlit.detectors import Detector, Reference, TrainFreeDetector, detectors, fit, overview
from oodlit.outputs import BackboneFacts, Head, Outputs
from oodlit.results.published import ADASCALE, MAHALANOBIS_PLUS_PLUS, NINCO, OPENOOD, PublishedTable

PAGE = Path(__file__).parents[2] / "docs" / "detectors.md"
SECTION = PAGE.read_text().split("\n## Which detector when\n")[1].split("\n## ")[0]
FEW = 5
"""The column that is measured here; all others are exact."""
PASSES = {"images", "model"}
"""What the simulated images do not have."""
every = pytest.mark.parametrize("kind", detectors().values(), ids=detectors())


def row(kind: type[Detector]) -> list[str]:
    """The cells of a detector."""
    detector = kind()
    about = overview(detector)
    return [
        kind.__name__,
        about.reads,
        "yes" if "head" in detector.required_needs else "no",
        "yes" if about.is_fitted else "no",
        signed(detector),
        few_images(kind),
        about.cost,
        "default" if about.tuned else "presets" if kind.tuned_presets else "-",
        board(kind.__name__, "ResNet50"),
        board(kind.__name__, "ViT-B/16"),
        cell(NINCO, kind.__name__, [("ninco", "mean_fpr95")], None, digits=1) or "-",
        cell(MAHALANOBIS_PLUS_PLUS, kind.__name__, [("ninco", "fpr95")], "mean of 44 models", digits=1) or "-",
    ]


def signed(detector: Detector) -> str:
    """What becomes of features of both signs."""
    if "features" not in detector.required_needs:
        return "-"
    reasons = [
        detector.why_not(BackboneFacts(num_train=10**6, signed_features=signed, feature_map=True, has_dropout=True))
        for signed in (False, True)
    ]
    if reasons[0] != reasons[1]:
        return "left out"
    return "with care" if detector.assumes_non_negative else "yes"


def board(name: str, model: str) -> str:
    """Near / far AUROC, of OpenOOD's board or, marked, of AdaSCALE's authors."""
    places = [("near", "auroc"), ("far", "auroc")]
    own = cell(ADASCALE, name, places, model)
    return cell(OPENOOD, name, places, model) or (f"{own} *" if own else "-")


def cell(table: PublishedTable, name: str, places: list[tuple[str, str]], model: str | None, *, digits: int = 2) -> str:
    """Figures of a detector in percent, those of its forms one after the other by name; empty if there are none."""
    found = []
    for printed in table.printed_as(name):
        values = [table.value(printed, dataset, metric, model=model) for dataset, metric in places]
        if None not in values:
            is_form = printed not in table.detectors and "".join(filter(str.isalnum, printed)).lower() != name.lower()
            figures = " / ".join(f"{100 * value:.{digits}f}" for value in values if value is not None)
            found.append(f"{printed} {figures}" if is_form else figures)
    return ", ".join(found)


@cache
def few_images(kind: type[Detector]) -> str:
    """Rank correlation of scores after a fit on 3 images of each class with those after one on 200: 64 features."""
    if not overview(kind()).is_fitted:
        return "none"
    if PASSES & kind().required_needs:
        return "-"
    scores = [fitted(kind, per_class).score(noisy(*test_images())) for per_class in (3, 200)]
    return f"{spearmanr(*scores).statistic:.2f}"


WIDTH, CLASSES = 64, 10


def fitted(kind: type[Detector], per_class: int) -> Detector:
    detector = kind()
    labels = torch.arange(per_class * CLASSES) % CLASSES
    training = noisy(labels, torch.ones(len(labels)), seed=1)
    fit([detector], [training], head())
    return detector


def test_images() -> tuple[torch.Tensor, torch.Tensor]:
    """Labels, and a noise that is larger in the second half."""
    return torch.arange(400) % CLASSES, torch.ones(400).index_fill_(0, torch.arange(200, 400), 1.6)


def head() -> Head:
    means = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(0))
    return Head(means / WIDTH**0.5, torch.zeros(CLASSES))


def noisy(labels: torch.Tensor, size: torch.Tensor, *, seed: int = 2) -> Outputs:
    """Features after a ReLU: the head's own rows and noise of unequal size; the hidden map repeats them."""
    noise = torch.randn(len(labels), WIDTH, generator=torch.Generator().manual_seed(seed))
    scale = torch.linspace(0.3, 2.0, WIDTH)
    features = (WIDTH**0.5 * head().weight[labels] + size[:, None] * scale * noise).relu()
    keys = [f"{seed}/{i}" for i in range(len(labels))]
    layers = {layer for kind in detectors().values() for layer in kind().required_layers}
    hidden = dict.fromkeys(layers, features[:, :, None, None].expand(-1, -1, 2, 2))
    return Outputs(head()(features), features, labels, keys=keys, hidden=hidden)


test_images.__test__ = False  # type: ignore[attr-defined]  # a helper


def written() -> dict[str, list[str]]:
    """Cells of the first table of the section by the name of the detector."""
    table = SECTION[SECTION.index("| Detector |") :].split("\n\n")[0]
    lines = [line.strip("|").split("|") for line in table.splitlines()]
    return {cells[0].strip(): [c.strip() for c in cells] for cells in lines[2:]}


@every
def test_every_detector_has_its_row(kind: type[Detector]) -> None:
    expected, found = row(kind), written().get(kind.__name__, [])
    message = (
        f"{kind.__name__} has no row, or a stale one, under 'Which detector when' in docs/detectors.md; write, in the"
        f" order of `oodlit list detectors`:\n| {' | '.join(expected)} |\n"
    )
    assert [*found[:FEW], *found[FEW + 1 :]] == [*expected[:FEW], *expected[FEW + 1 :]], message
    if expected[FEW] in ("none", "-"):
        assert found[FEW] == expected[FEW], message
    else:
        assert abs(float(found[FEW]) - float(expected[FEW])) <= 0.03, message


@final
class IODIN(TrainFreeDetector):
    """A detector that the page does not know, and OpenOOD's board does."""

    needs = frozenset({"images", "logits", "model"})
    reference = Reference("i-ODIN", "A. Nonymous", "example", 2026, "https://example.org")
    extra_passes = 2

    def _score(self, outputs: Outputs) -> torch.Tensor:
        return outputs.require("logits").amax(dim=1)


def test_whoever_adds_a_detector_is_told_what_to_write() -> None:
    with pytest.raises(AssertionError) as told:
        test_every_detector_has_its_row(IODIN)
    assert "IODIN has no row, or a stale one, under 'Which detector when' in docs/detectors.md" in str(told.value)
    line = "| IODIN | images | no | no | - | none | 2 extra forward passes | - | 76.53 / 89.64 | - | - | - |"
    assert line in str(told.value)


def test_rows_stand_in_the_order_of_the_list() -> None:
    from oodlit.cli.listing import _detectors

    assert [*written()] == [about["class"] for about in _detectors()]


def test_figures_of_the_text_are_those_of_the_package() -> None:
    """What the sentences of the section cite."""
    for sentence in cited():
        assert sentence in " ".join(SECTION.split()), f"the text of the section should have: {sentence}"


def cited() -> Iterator[str]:
    def percent(table: PublishedTable, printed: str, dataset: str, metric: str, model: str | None, digits: int) -> str:
        value = table.value(printed, dataset, metric, model=model)
        assert value is not None
        return f"{100 * value:.{digits}f}"

    many = ("ninco", "fpr95", "mean of 44 models", 1)
    maha = [percent(MAHALANOBIS_PLUS_PLUS, name, *many) for name in ("Maha++", "Maha")]
    yield f"a mean FPR95 of {maha[0]} % on NINCO over 44 networks; Mahalanobis has {maha[1]} %"
    yield f"a far AUROC of {percent(ADASCALE, 'LTS', 'far', 'auroc', 'Swin-B', 1)} % on a Swin-B"
    yield f"over the {len(NINCO.models())} classifiers"


def test_sections_follow_each_other() -> None:
    """What helps to choose comes first, all formulas last."""
    titles = [line for line in PAGE.read_text().splitlines() if line.startswith("## ")]
    assert titles[:2] == ["## Fit and score", "## Which detector when"]
    assert titles[-1] == "## All detectors"
