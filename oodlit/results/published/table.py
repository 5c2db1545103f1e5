"""A published table of OOD detectors: its source, its rule and its figures."""

import csv
import gzip
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, NamedTuple, TypeAlias

from oodlit.base.errors import UnknownNameError
from oodlit.results.published.protocol import Protocol

Stated: TypeAlias = Mapping[str, object] | str
"""Settings of a detector in a published table, as arguments of its class, or the reason why they are unknown.
A tuple lists equivalent values, the printed one first."""


class PublishedFigure(NamedTuple):
    """One figure.

    Args:
        model: The network, as printed.
        detector: As printed; empty for a figure of the network alone.
        dataset: The OOD set, or the set that an accuracy refers to.
        metric: The name in `oodlit.results.glossary`.
        value: 0..1.
        ood_class: The OOD class or unit test; empty for a set.
        n: Number of images of that class; 0 = unknown.
    """

    model: str
    detector: str
    dataset: str
    metric: str
    value: float
    ood_class: str = ""
    n: int = 0


@cache
def read_rows(file: str, package: str = "oodlit.results.published") -> list[dict[str, str]]:
    """Read the rows of a CSV file of a package; the names of compressed files end in ".gz"."""
    data = (resources.files(package) / file).read_bytes()
    text = (gzip.decompress(data) if file.endswith(".gz") else data).decode()
    return list(csv.DictReader(text.splitlines()))


@cache
def read_figures(file: str) -> tuple[PublishedFigure, ...]:
    """Read the figures of a CSV file of this folder: model, detector, dataset, metric, value in percent.

    Files of classes also have the columns `ood_class` and `n`.
    """
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
        for row in read_rows(file)
    )


@dataclass(frozen=True)
class PublishedTable:
    """A table, with its figures in a CSV file of this folder, see `read_figures`.

    A new table takes a module that describes it, a CSV file, and a line in the export list of this folder.

    Args:
        name: Name in oodlit.
        source: Authors, title, venue, year.
        url: Where it can be read.
        tables: Place of the figures in the source, and what was left out.
        rule: How a figure is computed. Figures with different rules are not comparable.
        file: Name of the CSV file.
        protocol: The same in terms that a run can be compared with.
        detectors: Printed name -> class name, if they differ by more than case and punctuation; "" = not in oodlit,
            although a name is the same.
        weights: Printed model -> its weights in timm, as `weights` names them. Other models are never detected in a
            run, but can be named.
        settings: Printed detector -> its stated settings; others are not compared.
        settings_of_models: By printed model, settings that differ from `settings`.
        class_file: Name of the CSV file with the figures of OOD classes and unit tests; "" = none.
        read: Reads the figures of a file.
        aliases: Other names of the table, such as that of a benchmark.
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
    aliases: tuple[str, ...] = ()

    def figures(self) -> tuple[PublishedFigure, ...]:
        """All figures of sets, in the order of the file."""
        return self.read(self.file)

    def class_figures(self) -> tuple[PublishedFigure, ...]:
        """All figures of OOD classes and unit tests, in the order of the file."""
        return self.read(self.class_file) if self.class_file else ()

    def model_of(self, own: str) -> str:
        """The printed model with given weights of timm; "" if unknown.

        Args:
            own: Their name by `weights`.

        Example:
            >>> from oodlit.results.published import NINCO
            >>> [NINCO.model_of(f"resnet50.a1_in1k, {form}") for form in ("224 px, crop 0.95", "288 px, crop 1")]
            ['ResNet50', '']
        """
        found = [printed for printed, name in self.weights.items() if name == own]
        return found[0] if found else own if any(f.model == own for f in self.figures()) else ""

    def network(self, model: str) -> dict[str, Any]:
        """Return the arguments of `OODModule` for a printed model: weights in timm, with the paper's size and crop.

        Args:
            model: Printed name, such as "ResNet50" of NINCO.

        Raises:
            UnknownNameError: The table has no such model, or its weights are not known.

        Example:
            >>> from oodlit.results.published import NINCO
            >>> arguments = NINCO.network("ResNet50")  # OODModule(**arguments)
            >>> arguments["backbone"], arguments["transform"].transforms[:2]
            ('resnet50.a1_in1k', [Resize(size=235, interpolation=bicubic, max_size=None, antialias=True), \
CenterCrop(size=(224, 224))])
        """
        import timm.data  # noqa: PLC0415  # takes a second to import

        UnknownNameError.check(f"timm network of {self.name}", model, self.weights)
        name, size, crop = self.weights[model].split(", ")
        pixels, share = int(size.removesuffix(" px")), float(crop.removeprefix("crop "))
        known = timm.models.get_pretrained_cfg(name)
        assert known is not None  # a test builds all of them
        config = timm.data.config.resolve_data_config(pretrained_cfg=known.to_dict())  # type: ignore[no-untyped-call]
        config |= {"input_size": (3, pixels, pixels), "crop_pct": share}
        return {
            "backbone": name,
            "transform": timm.data.transforms_factory.create_transform(**config, is_training=False),
        }

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
        """The stated settings of a printed detector on a printed model.

        Example:
            >>> from oodlit.results.published import NINCO
            >>> NINCO.settings_of("Cosine", "ResNet50"), NINCO.settings_of("Cosine", "clip-ViT-B-224")
            ({'concepts': 'means'}, {'concepts': 'head'})
        """
        return self.settings_of_models.get(model, {}).get(detector, self.settings.get(detector, {}))

    def value(self, detector: str, dataset: str, metric: str, *, model: str | None = None) -> float | None:
        """A figure, or for `model=None` the mean over the models; None if not published.

        Args:
            detector: As printed.
            dataset: As in the file.
            metric: The name in the glossary.
            model: As printed. The mean is over all models with figures for every detector, see `models`.

        Raises:
            UnknownNameError: The table has no such model.

        Example:
            >>> from oodlit.results.published import OPENOOD
            >>> OPENOOD.value("SCALE", "far", "auroc", model="ResNet50")
            0.9653
        """
        if model is not None:
            UnknownNameError.check(f"model of {self.name}", model, {figure.model for figure in self.figures()})
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
        """Possible class names of a printed name: as mapped, as printed, and without the variant after a dash."""
        names = [self.detectors[printed]] if printed in self.detectors else [printed, printed.rpartition("-")[0]]
        return {_plain(name) for name in names} - {""}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
