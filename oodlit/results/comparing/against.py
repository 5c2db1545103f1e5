"""Compare a run with published figures; state the reason for each value that is not comparable."""

import math
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from oodlit.base.errors import InvalidArgumentError, UnknownNameError
from oodlit.base.roles import Role
from oodlit.metrics import acceptance_threshold
from oodlit.results.evaluation.scored_sets import ScoredSets
from oodlit.results.glossary import MEAN, POOLED, better_of
from oodlit.results.names import MODEL
from oodlit.results.published.protocol import weights
from oodlit.results.published.table import PublishedTable
from oodlit.results.run_results import RunResults

COLUMNS = (
    "detector", "dataset", "ood_class", "metric", "ours", "ci_low", "ci_high", "published", "difference", "model",
    "rank", "of", "quantile", "reason", "printed_as", "rule", "source",
)  # fmt: skip
NO_MODEL = "the network was not recognized as a model of the published table; name it with against(model=...)"
_WORDS = {"classes": "the mean over classes", "images": "all images together"}
_UNDEFINED = (math.nan, math.nan, math.nan)


class Rank(NamedTuple):
    """Rank of a value among published ones.

    Args:
        rank: 1 = no published value is better.
        of: Number of published values, plus one.
        quantile: Share of the published values that are worse, 0..1.
    """

    rank: int
    of: int
    quantile: float


def rank_among(value: float, published: Sequence[float], *, better: str) -> Rank:
    """Rank a value among published ones.

    Args:
        value: Ours.
        published: The others, at least one.
        better: "lower" or "higher".

    Raises:
        InvalidArgumentError: There is no other value, a value is NaN, or `better` is invalid.

    Example:
        >>> rank_among(0.71, [0.65, 0.70, 0.72, 0.80], better="lower")
        Rank(rank=3, of=5, quantile=0.5)
    """
    if better not in ("lower", "higher") or not published or any(map(math.isnan, [value, *published])):
        raise InvalidArgumentError(
            "rank_among: expected at least one published value, no NaN, and better='lower' or 'higher'; got"
            f" value={value}, published={[*published]} and better={better!r}"
        )
    sign = -1 if better == "lower" else 1
    above = sum(sign * (other - value) > 0 for other in published)
    below = sum(sign * (other - value) < 0 for other in published)
    return Rank(above + 1, len(published) + 1, below / len(published))


def against(
    results: RunResults, table: PublishedTable, *, model: str | None = None, classes: bool = False
) -> pd.DataFrame:
    """Compare the values of a run with those of a published table; see `Results.against`.

    Args:
        results: The run.
        table: The published figures.
        model: Name of the network in the table; None = detected by weights and transform.
        classes: True adds the figures of OOD classes and unit tests.

    Raises:
        UnknownNameError: The table has no such model.
    """
    figures = [*table.figures(), *(table.class_figures() if classes else ())]
    if model is not None:
        UnknownNameError.check(f"model of {table.name}", model, {figure.model for figure in figures})
    printed = _model(results, table) if model is None else model
    published: dict[_Place, dict[str, float]] = {}
    for figure in figures:
        place = _Place(figure.detector, figure.dataset, figure.ood_class, figure.metric)
        published.setdefault(place, {})[figure.model] = figure.value
    run = _Run(results, table, printed)
    rows = [run.row(name, place, values) for place, values in published.items() for name in run.detectors_at(place)]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    numbers = ("ours", "ci_low", "ci_high", "published", "difference", "quantile")
    kinds = dict.fromkeys(COLUMNS, str) | dict.fromkeys(numbers, float)
    frame = frame.astype({**kinds, "rank": "Int64", "of": "Int64"})
    frame.attrs["left_out"] = "" if rows else run.nothing_shared(published)
    return frame


class _Place(NamedTuple):
    """Address of a printed figure; `detector` is the name in the table, empty for the network alone."""

    detector: str
    dataset: str
    ood_class: str
    metric: str


def _missing(ours: float, theirs: float, printed: str) -> str:
    if math.isnan(ours):
        return "the value is undefined or was not computed in this run"
    return NO_MODEL if not printed else f"not published for {printed}" if math.isnan(theirs) else ""


def _model(results: RunResults, table: PublishedTable) -> str:
    """Name of the network in the table, detected by weights and transform; "" if unknown."""
    known = results.run.backbone.published_as
    return table.model_of(weights(known.model, known.img_size, known.crop_pct)) if known else ""


def _agrees(own: object, stated: object, *, same_training: bool) -> bool:
    """Whether a setting agrees with the table; None (derived from training images) agrees if these are the same."""
    equal = _equal(stated)
    return own in equal and (own is not None or equal[0] is None or same_training)


def _equal(stated: object) -> tuple[object, ...]:
    """Equivalent values of a setting, the printed one first."""
    return stated if isinstance(stated, tuple) else (stated,)


class _Run:
    """A run, evaluated by the rules of a published table."""

    def __init__(self, results: RunResults, table: PublishedTable, model: str) -> None:
        self.results, self.table, self.protocol, self.model = results, table, table.protocol, model
        self.sets = {info.name: info for info in results.datasets}
        self.inside = results.id_dataset.name
        rows = results.table[(results.table["ood_class"] != "") & (results.table["detector"] != MODEL)]
        self._classes: dict[str, dict[str, int]] = {name: {} for name in self.sets}
        for dataset, ood_class, n in zip(rows["dataset"], rows["ood_class"], rows["n_ood"], strict=True):
            self._classes[dataset][ood_class] = int(n)

    @cached_property
    def _detectors(self) -> dict[str, list[str]]:
        """Detectors of the run by their name in the table; the empty name stands for the network alone."""
        found = {"": [MODEL]}
        for name in self.results.detectors:
            config = self.results.run.detector_settings.get(name)
            kind = (config.class_path if config else name).partition("[")[0].rpartition(".")[2]
            for form in self.table.printed_as(kind):
                found.setdefault(form, []).append(name)
        return found

    def detectors_at(self, place: _Place) -> list[str]:
        """Detectors of the run that have the printed form, if the run has the data set."""
        return self._detectors.get(place.detector, []) if self.has(place.dataset, place.ood_class) else []

    def row(self, name: str, place: _Place, values: Mapping[str, float]) -> dict[str, object]:
        """A row of the comparison.

        Args:
            name: Detector of the run.
            place: What the printed figures are about.
            values: Printed figures by model.
        """
        form, dataset, ood_class, metric = place
        reason = self.mismatch(dataset, ood_class, metric) or self.other_settings(name, form)
        ours, low, high = self.value(name, dataset, ood_class, metric)
        theirs, better = values.get(self.model, math.nan), better_of(metric)
        is_comparable = not reason and not math.isnan(ours)
        others = [value for other, value in values.items() if other != self.model] if is_comparable and better else []
        return {
            **place._asdict(),
            "detector": name,
            "ours": ours,
            "ci_low": low,
            "ci_high": high,
            "published": theirs,
            "difference": ours - theirs if is_comparable else math.nan,
            "model": self.model,
            **(rank_among(ours, others, better=better)._asdict() if others else {}),
            "reason": reason or _missing(ours, theirs, self.model),
            "printed_as": form,
            "rule": self.rule(metric),
            "source": f"{self.table.source}, {self.table.url}",
        }

    @cached_property
    def _values(self) -> dict[tuple[str, str, str, str], tuple[float, float, float]]:
        """Values and intervals by place in the table of the run; the FPR by the published threshold rule."""
        rule = self.protocol.threshold
        other = _fpr(self.results, rule) if rule not in ("", self.results.settings.rule) else {}
        places = self.results.table[[*COLUMNS[:4], "value", "ci_low", "ci_high"]].itertuples(index=False, name=None)
        return {row[:4]: row[4:] for row in places} | other

    @cached_property
    def _their_classes(self) -> dict[str, dict[str, int]]:
        """Number of images by class, for every data set with classes in the table."""
        found: dict[str, dict[str, int]] = {}
        for figure in self.table.class_figures():
            found.setdefault(figure.dataset, {})[figure.ood_class] = figure.n
        return found

    def has(self, dataset: str, ood_class: str) -> bool:
        """Whether the run has one of the sets behind a printed data set, and the class; with shifted sets if needed."""
        if dataset in self.protocol.shifted and not any(info.role is Role.SHIFT for info in self.sets.values()):
            return False
        names = [name for name in self.protocol.sets_of(dataset) or (dataset,) if name in self.sets]
        return bool(names) and (not ood_class or ood_class in self._classes[names[0]])

    def nothing_shared(self, published: Collection[_Place]) -> str:
        """Why the table has no figure that belongs to this run."""
        if not any(self.has(dataset, "") for _, dataset, _, _ in published):
            names = dict.fromkeys(dataset for _, dataset, _, _ in published)
            return f"{self.table.name} has figures for sets {', '.join(names)}, but this run has {', '.join(self.sets)}"
        detectors = dict.fromkeys(form for form, _, _, _ in published if form)
        own = ", ".join(self.results.detectors)
        return f"{self.table.name} has figures for detectors {', '.join(detectors)}, but this run has {own}"

    def value(self, detector: str, dataset: str, ood_class: str, metric: str) -> tuple[float, float, float]:
        """The value of the run by the rule of the table, with an interval unless it is a mean of several values.

        NaN if the run has no such value.
        """
        names = self.protocol.sets_of(dataset)
        metric = metric if dataset not in self.protocol.shifted else f"fs_{metric}"
        for mean, members in self.results.settings.aggregates.items():
            if set(members) == set(names) and (found := self._values.get((detector, mean, ood_class, metric))):
                return found
        rows = [self._row(detector, name, ood_class, metric) for name in names]
        if len(rows) == 1:
            return rows[0]
        return sum(row[0] for row in rows) / len(rows) if rows else math.nan, math.nan, math.nan

    def _row(self, detector: str, dataset: str, ood_class: str, metric: str) -> tuple[float, float, float]:
        if metric == "accuracy" and dataset in (masked := self.results.run.masked_accuracy):
            right, total = masked[dataset]
            return right / total if total else math.nan, math.nan, math.nan
        plain = self._values.get((detector, dataset, ood_class, metric))
        return plain or self._values.get((detector, dataset, ood_class, f"{POOLED}{metric}"), _UNDEFINED)

    def mismatch(self, dataset: str, ood_class: str, metric: str) -> str:
        """How the rule of the table differs from that of the run; "" = no known difference."""
        names = self.protocol.sets_of(dataset)
        if not names:
            return f"the data sets that {dataset!r} averages are not published, or they are not those of this run"
        if not self.protocol.mean or metric in self.protocol.unclear:
            return "the table does not state whether the value is a mean over classes or over all images"
        if missing := [name for name in names if name not in self.sets]:
            return f"the published mean is over {', '.join(names)}; this run does not include {', '.join(missing)}"
        return (
            self._other_share(metric)
            or self._other_spectrum(dataset)
            or self._other_images([*names, *self.protocol.shifted.get(dataset, ())], metric)
            or self._other_classes(names, ood_class)
        )

    def _other_spectrum(self, dataset: str) -> str:
        """How the shifted sets that count as ID differ; any other figure does not depend on them."""
        if not (there := self.protocol.shifted.get(dataset)):
            return ""
        here = [info.name for info in self.sets.values() if info.role is Role.SHIFT]
        text = f"the table counts {', '.join(there)} as ID, but this run counts {', '.join(here) or 'no set'}"
        return text if set(here) ^ set(there) else ""

    def _other_share(self, metric: str) -> str:
        settings, share = self.results.settings, metric.removeprefix(MEAN)
        here = settings.der_names if share.startswith("der") else [settings.fpr_name]
        text = f"the table has {share}, but this run has {', '.join(here)}"
        return text if share.startswith(("der", "fpr")) and share not in here else ""

    def _other_images(self, names: Sequence[str], metric: str) -> str:
        if metric != "accuracy" and self.inside != self.protocol.inside:
            return f"the ID set is {self.protocol.inside} in the table, but {self.inside} in this run"
        for name in dict.fromkeys(names if metric == "accuracy" else [self.inside, *names]):
            here, there = self.results.run.counts.get(name, 0), self.protocol.images.get(name)
            if there not in (None, here):
                return f"{name} has {there:,} images in the table, {here:,} in this run"
            if there is None and self.protocol.mean == "images":  # sets of others may have the name
                return f"the table does not state the number of images of {name}"
            if self.sets[name].num_samples not in (None, here):
                return f"{here:,} of {self.sets[name].num_samples:,} images of {name} were scored"
        return ""

    def _other_classes(self, names: Sequence[str], ood_class: str) -> str:
        if self.protocol.mean == "images":
            chosen = [name for name in names if name in self.results.settings.classes]
            return f"the table covers all classes of {chosen[0]}, but this run only some of them" if chosen else ""
        here, there = self._classes[names[0]], self._their_classes.get(names[0], {})
        if ood_class:
            there, here = {ood_class: there[ood_class]}, {ood_class: here[ood_class]}
        if not here:
            return f"the table has {_WORDS['classes']}, but this run has one value of {_WORDS['images']}"
        if there.keys() ^ here.keys():
            same = " different ones" if len(there) == len(here) else ""
            return f"{names[0]} has {len(there)} classes in the table, {len(here)}{same} in this run"
        unlike = next((name for name in there if there[name] not in (0, here[name])), "")
        return f"{unlike} has {there[unlike]} images in the table, {here[unlike]} in this run" if unlike else ""

    def other_settings(self, name: str, form: str) -> str:
        """How the settings of a detector differ between run and table; "" = no stated setting differs.

        Args:
            name: Name of the detector in the run.
            form: Name of the detector in the table; "" = the network alone.
        """
        stated, run = self.table.settings_of(form, self.model), self.results.run
        there, here = self.protocol.train_images, run.data.train_images or 0  # 0 = none or unknown
        if isinstance(stated, str):
            return f"{form}: {stated}"
        if there and here not in (0, there) and (overview := run.overview.get(name)) and overview.is_fitted:
            return f"{form} is fitted on {there:,} images in the table, but on {here:,} in this run"
        config = run.detector_settings.get(name)
        if stated and config is None:
            return f"run.json does not contain the settings of {name}"
        known = {setting: config.init_args.get(setting) for setting in stated} if config else {}
        unlike = [name for name in stated if not _agrees(known[name], stated[name], same_training=here == there)]
        texts = [f"{name}={_equal(stated[name])[0]!r}" for name in unlike], [f"{n}={known[n]!r}" for n in unlike]
        return f"{form} has {', '.join(texts[0])} in the table, but {', '.join(texts[1])} in this run" if unlike else ""

    def rule(self, metric: str) -> str:
        """The rule of a published figure, in short."""
        mean = "" if metric in self.protocol.unclear else self.protocol.mean
        threshold = f"threshold {self.protocol.threshold}, " if "fpr" in metric and self.protocol.threshold else ""
        return threshold + _WORDS.get(mean, "unknown kind of mean") if metric != "accuracy" else "top-1"


def _fpr(results: RunResults, rule: str) -> dict[tuple[str, str, str, str], tuple[float, float, float]]:
    """FPR of every OOD set and unit test with another threshold rule than in the run; without intervals."""
    settings = results.settings
    sets = ScoredSets(results.scores, results.datasets, settings)
    found: dict[tuple[str, str, str, str], tuple[float, float, float]] = {}
    for detector in results.detectors if len(sets.id) else ():
        threshold = acceptance_threshold(sets.values(detector, sets.id), tpr=settings.tpr, rule=rule)
        for scored in (*sets.of(Role.OOD), *sets.of(Role.UNIT_TEST)):
            accepted = (sets.values(detector, scored).double() >= threshold).numpy()
            classes = {name: _share(accepted[members]) for name, members in scored.members.items()}
            together = np.concatenate([accepted[members] for members in scored.members.values()] or [accepted])
            values = {("", settings.fpr_name if not classes else POOLED + settings.fpr_name): _share(together)}
            if classes:
                present = [value for value in classes.values() if not math.isnan(value)]
                values["", MEAN + settings.fpr_name] = float(np.mean(present)) if present else math.nan
            values |= {(name, settings.fpr_name): value for name, value in classes.items()}
            for (ood_class, metric), value in values.items():
                found[detector, scored.info.name, ood_class, metric] = (value, math.nan, math.nan)
    return found


def _share(accepted: np.ndarray) -> float:
    return float(accepted.mean()) if len(accepted) else math.nan
