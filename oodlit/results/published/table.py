"""A published table of OOD detectors: whose it is, by which rule its figures are formed, and the figures."""

import csv
import gzip
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import NamedTuple, TypeAlias

from oodlit.errors import UnknownNameError
from oodlit.results.published.protocol import Protocol

Stated: TypeAlias = Mapping[str, object] | str
"""Settings of a detector as a table states them, arguments of its class; a tuple holds values that mean the same there,
the printed one first. A text = why they are not known."""


class PublishedFigure(NamedTuple):
    """One figure.

    Args:
        model: The network, as printed.
        detector: As printed; empty for a fact of the network alone.
        dataset: What was told apart from the ID images, or what they are.
        metric: The name in `oodlit.results.glossary`.
        value: 0..1.
        ood_class: The OOD class or unit test; empty for a set.
        n: Number of images of that class; 0 = not known.
    """

    model: str
    detector: str
    dataset: str
    metric: str
    value: float
    ood_class: str = ""
    n: int = 0


@cache
def read_figures(file: str) -> tuple[PublishedFigure, ...]:
    """The figures of a CSV file of this folder, in its order: model, detector, dataset, metric, value in percent.

    Files of classes also have the columns `ood_class` and `n`; the name ends in ".gz" where they are packed.
    """
    data = (resources.files("oodlit.results.published") / file).read_bytes()
    text = (gzip.decompress(data) if file.endswith(".gz") else data).decode()
    # Rounded: 74.77 / 100 is 0.7476999999999999.
    return tuple(
        PublishedFigure(
            row["model"],
            row["detector"],
            row["dataset"],
            row["metric"],
            round(float(row["value"]) / 100, 7),
            row.get("ood_class", ""),
            int(row.get("n", 0)),
        )
        for row in csv.DictReader(text.splitlines())
    )


@dataclass(frozen=True)
class PublishedTable:
    """A table, with its figures in a CSV file of this folder, see `read_figures`.

    A further one is a file that describes it, its CSV file, and a line in the export list of this folder.

    Args:
        name: The name here.
        source: Authors, title, venue, year.
        url: Where it can be read.
        tables: Where in the source the figures stand, and what was left out.
        rule: How a figure is formed. Figures of different rules are no comparison.
        file: Name of the CSV file.
        protocol: The same, as far as a run can be held against it.
        detectors: Printed name -> class name, where they differ by more than case and punctuation; "" = none of ours,
            although the name is the same.
        weights: Printed model -> the weights of timm that it is, as `weights` names them. A model that is not here is
            never recognised in a run; it can be named.
        settings: Printed detector -> its settings, as far as they are stated; others are not compared.
        settings_of_models: By printed model, settings that are others than in `settings`.
        class_file: Name of the CSV file with the figures of OOD classes and unit tests; "" = none.
        read: Gives the figures of a file.
    """

    name: str
    source: str
    url: str
    tables: str
    rule: str
    file: str
    protocol: Protocol
    detectors: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Stated] = field(default_factory=dict)
    settings_of_models: Mapping[str, Mapping[str, Stated]] = field(default_factory=dict)
    class_file: str = ""
    read: Callable[[str], tuple[PublishedFigure, ...]] = read_figures

    def figures(self) -> tuple[PublishedFigure, ...]:
        """All figures of sets, in the order of the file."""
        return self.read(self.file)

    def class_figures(self) -> tuple[PublishedFigure, ...]:
        """All figures of OOD classes and unit tests, in the order of the file; none if the table has none."""
        return self.read(self.class_file) if self.class_file else ()

    def model_of(self, own: str) -> str:
        """The printed model that weights of timm are; "" if the table has none that is known to be them.

        Args:
            own: As `weights` names them.

        Example:
            >>> from oodlit.results.published import NINCO
            >>> [NINCO.model_of(f"resnet50.a1_in1k, {form}") for form in ("224 px, crop 0.95", "288 px, crop 1")]
            ['ResNet50', '']
        """
        found = [printed for printed, name in self.weights.items() if name == own]
        return found[0] if found else own if any(f.model == own for f in self.figures()) else ""

    def printed_as(self, detector: str) -> list[str]:
        """Printed names of a detector, of its forms too ("AdaSCALE-A" is one of "AdaSCALE"), in the order of the file.

        Args:
            detector: Class name.

        Example:
            >>> from oodlit.results.published import OPENOOD
            >>> OPENOOD.printed_as("RelativeMahalanobis"), OPENOOD.printed_as("NECO")
            (['RMDS'], [])
        """
        printed = dict.fromkeys(figure.detector for figure in self.figures() if figure.detector)
        return [name for name in printed if _plain(detector) in self._plain_names(name)]

    def settings_of(self, detector: str, model: str = "") -> Stated:
        """Settings of a printed detector on a printed model, as far as they are stated.

        Example:
            >>> from oodlit.results.published import NINCO
            >>> NINCO.settings_of("Cosine", "ResNet50"), NINCO.settings_of("Cosine", "clip-ViT-B-224")
            ({'concepts': 'means'}, {'concepts': 'head'})
        """
        return self.settings_of_models.get(model, {}).get(detector, self.settings.get(detector, {}))

    def value(self, detector: str, dataset: str, metric: str, *, model: str | None = None) -> float | None:
        """A figure, or for `model=None` the mean over the models; None if it was not published.

        Args:
            detector: As printed.
            dataset: As in the file.
            metric: The name in the glossary.
            model: As printed. The mean is over all models with figures for every detector, see `models`.

        Raises:
            UnknownNameError: The table has no figure of this model.

        Example:
            >>> from oodlit.results.published import OPENOOD
            >>> OPENOOD.value("SCALE", "far", "auroc", model="ResNet50")
            0.9653
        """
        known = dict.fromkeys(figure.model for figure in self.figures())
        if model is not None and model not in known:
            raise UnknownNameError.of(f"model of {self.name}", model, known)
        asked = {model} if model is not None else set(self.models())
        of = (detector, dataset, metric)
        found = {f.model: f.value for f in self.figures() if (f.detector, f.dataset, f.metric) == of}
        if not asked or not asked <= found.keys():
            return None
        return round(sum(found[name] for name in sorted(asked)) / len(asked), 7)

    def models(self) -> list[str]:
        """Models with figures for every detector of the table, over which means are taken."""
        printed = {f.detector for f in self.figures() if f.detector}
        complete: dict[str, set[str]] = {}
        for figure in self.figures():
            complete.setdefault(figure.model, set()).add(figure.detector)
        return [model for model, seen in complete.items() if printed <= seen]

    def _plain_names(self, printed: str) -> set[str]:
        """Of the class that a printed name may mean: as mapped, as it stands, and without the form behind a dash."""
        if printed in self.detectors:
            return {_plain(self.detectors[printed])} - {""}
        return {_plain(printed), _plain(printed.rpartition("-")[0])} - {""}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
