r"""The open-set metrics as torchmetrics classes: batches in any cut and order, gathered from all processes."""

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oodlit.base.fractions import ShareLike
from oodlit.errors import InvalidArgumentError
from oodlit.metrics.entry import Value
from oodlit.metrics.numerics.ranking import as_integers, as_numbers
from oodlit.metrics.numerics.undefined import undefined
from oodlit.metrics.streams import StreamMetric
from oodlit.objects.metrics.open_set import MatchedBoxes, OpenSet
from oodlit.objects.metrics.thresholds import TAU_RULES, unknown_threshold
from oodlit.objects.metrics.wilderness import ClassifiedBoxes, wilderness_of

__all__ = [
    "AOSE",
    "NOSE",
    "Dismissed",
    "NOSEBoxes",
    "UnknownAP",
    "UnknownPrecision",
    "UnknownRecall",
    "WildernessImpact",
]


class _BoxMetric(StreamMetric):
    """Streams of values per box, each batch with objects of its own."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # Objects are numbered within their batch: with its size they have one number in all batches and processes.
        for name in ("objects", "batch_boxes", "batch_objects"):
            self.add_stream(name, torch.int64)

    def add_batch(self, objects: Tensor, n_objects: int) -> None:
        """Take the numbers of the objects of one batch."""
        if n_objects < 0 or (len(objects) and not -1 <= int(objects.min()) <= int(objects.max()) < n_objects):
            raise InvalidArgumentError(
                f"{type(self).__name__}: objects must be numbers below n_objects={n_objects}, or -1"
            )
        self.append("objects", objects)
        self.append("batch_boxes", torch.tensor([len(objects)]))
        self.append("batch_objects", torch.tensor([n_objects]))

    def all_objects(self) -> tuple[np.ndarray, int]:
        """Objects by numbers that all batches share, and how many there are."""
        sizes = self.stream("batch_objects").cpu()
        offsets = torch.repeat_interleave(sizes.cumsum(0) - sizes, self.stream("batch_boxes").cpu())
        objects = self.stream("objects").cpu()
        return torch.where(objects < 0, objects, objects + offsets).numpy(), int(sizes.sum())

    def numbers(self, name: str) -> np.ndarray:
        """A stream as an array."""
        return np.array(self.stream(name).cpu().numpy())


class OpenSetMetric(_BoxMetric):
    r"""A metric of the boxes of an OOD split; a subclass gives `value(open_set)`.

    Args:
        tau: Boxes with a lower score are called unknown. None = from the ID scores that `update_id` takes, by `rule`.
        rule: "quantile" or "normal"; see `oodlit.objects.unknown_threshold`.
        tpr: Share of ID boxes to keep, for "quantile".
        iou: Overlap from which on a box hits an object.
        kwargs: Passed to `torchmetrics.Metric`.

    Raises:
        InvalidArgumentError: The rule is not known.
    """

    plot_lower_bound = 0.0

    def __init__(
        self,
        tau: float | None = None,
        *,
        rule: str = "quantile",
        tpr: ShareLike = 0.95,
        iou: float = 0.5,
        **kwargs: Any,
    ) -> None:
        """Streams of confidences, scores, overlaps and ID scores."""
        super().__init__(**kwargs)
        if rule not in TAU_RULES:
            raise InvalidArgumentError(f"rule={rule!r}: {' or '.join(map(repr, TAU_RULES))} is needed")
        self.tau, self.rule, self.tpr, self.iou = tau, rule, tpr, iou
        for name in ("confidence", "scores", "overlaps", "id_scores"):
            self.add_stream(name, torch.float64)

    def update(self, confidence: Tensor, scores: Tensor, objects: Tensor, overlaps: Tensor, *, n_objects: int) -> None:
        """Take the boxes of some images, from t* on, and the number of their objects.

        Args:
            confidence: The detector's own, shape (boxes,).
            scores: OOD score, higher = more in-distribution, shape (boxes,).
            objects: Number of the object that each box overlaps most, among those of these images; -1 = none.
            overlaps: Intersection over union with it, shape (boxes,).
            n_objects: Number of objects of these images, those that no box hits too.

        Raises:
            InvalidArgumentError: Shapes do not fit, or there is no such object.
        """
        columns = {"confidence": confidence, "scores": scores, "overlaps": overlaps}
        values = {name: as_numbers(value, name) for name, value in columns.items()}
        numbers = as_integers(objects, "objects")
        if len({len(numbers), *map(len, values.values())}) > 1:
            lengths = {name: len(value) for name, value in {**values, "objects": numbers}.items()}
            raise InvalidArgumentError(f"{type(self).__name__}: fields differ in their number of boxes: {lengths}")
        self.add_batch(numbers, n_objects)
        for name, value in values.items():
            self.append(name, value)

    def update_id(self, scores: Tensor) -> None:
        """Take scores of boxes of ID images, from t* on, for a tau by the rule."""
        self.append("id_scores", as_numbers(scores))
        self._computed = None

    @abstractmethod
    def value(self, open_set: OpenSet) -> Value:
        """The value for all boxes."""

    def result(self) -> Tensor:
        """The value of all boxes."""
        objects, n_objects = self.all_objects()
        tau = self.tau
        if tau is None:
            id_scores = self.stream("id_scores")
            if not len(id_scores):
                return self._float(undefined(type(self).__name__, "there is no ID box to take tau from"))
            tau = unknown_threshold(id_scores.cpu(), rule=self.rule, tpr=self.tpr)
        confidence, scores, overlaps = (self.numbers(name) for name in ("confidence", "scores", "overlaps"))
        boxes = MatchedBoxes(confidence, scores, objects, overlaps, n_objects)
        value = self.value(OpenSet(boxes, tau, self.iou))
        return self._float(undefined(type(self).__name__, value.reason) if value.reason else value.value)


class UnknownAP(OpenSetMetric):
    """Streaming `ap_u`: average precision of the boxes called unknown.

    Example:
        >>> metric = UnknownAP(tau=0.0)
        >>> metric.update(torch.tensor([0.9, 0.8]), torch.tensor([-1.0, -2.0]), torch.tensor([-1, 0]),
        ...     torch.tensor([0.0, 0.7]), n_objects=1)
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    higher_is_better = True

    def value(self, open_set: OpenSet) -> Value:
        """AP_U of all boxes."""
        return open_set.ap_u()


class UnknownPrecision(OpenSetMetric):
    """Streaming `p_u`: share of the boxes called unknown that find an unknown object."""

    higher_is_better = True

    def value(self, open_set: OpenSet) -> Value:
        """P_U of all boxes."""
        return open_set.p_u()


class UnknownRecall(OpenSetMetric):
    """Streaming `r_u`: share of the unknown objects that are found."""

    higher_is_better = True

    def value(self, open_set: OpenSet) -> Value:
        """R_U of all boxes."""
        return open_set.r_u()


class NOSE(OpenSetMetric):
    """Streaming `nose`: share of the unknown objects that are hit by boxes called ID alone."""

    higher_is_better = False

    def value(self, open_set: OpenSet) -> Value:
        """The share for all boxes."""
        return open_set.nose()


class NOSEBoxes(OpenSetMetric):
    """Streaming `nose_boxes`: boxes called ID on unknown objects per unknown object, as FMIYC prints it."""

    higher_is_better = False

    def value(self, open_set: OpenSet) -> Value:
        """The ratio for all boxes."""
        return open_set.nose_boxes()


class Dismissed(OpenSetMetric):
    """Streaming `dismissed`: share of the unknown objects that no box hits."""

    higher_is_better = False

    def value(self, open_set: OpenSet) -> Value:
        """The share for all boxes."""
        return open_set.dismissed_share()


class AOSE(OpenSetMetric):
    """Streaming `aose`: number of unknown objects that are hit by boxes called ID alone."""

    higher_is_better = False

    def value(self, open_set: OpenSet) -> Value:
        """The number for all boxes."""
        return Value(float(open_set.aose))


class WildernessImpact(_BoxMetric):
    """Streaming `wilderness_impact` of boxes called ID.

    Args:
        n_classes: Number of ID classes.
        recall: Recall of a class at which to read, in (0, 1].
        kwargs: Passed to `torchmetrics.Metric`.

    Example:
        >>> metric = WildernessImpact(1)
        >>> one = torch.zeros(1, dtype=torch.int64)
        >>> metric.update(torch.tensor([0.9]), one, torch.tensor([0]), torch.tensor([False]), object_classes=one)
        >>> metric.update(torch.tensor([0.95]), one, torch.tensor([-1]), torch.tensor([True]), object_classes=one[:0])
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    higher_is_better = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    class_counts: Tensor

    def __init__(self, n_classes: int, *, recall: ShareLike = 0.8, **kwargs: Any) -> None:
        """Streams of confidences, classes and what boxes hit."""
        super().__init__(**kwargs)
        if n_classes < 1:
            raise InvalidArgumentError(f"n_classes={n_classes!r}: at least 1 is needed")
        self.recall = recall
        self.add_stream("confidence", torch.float64)
        self.add_stream("classes", torch.int64)
        self.add_stream("on_unknown", torch.bool)
        self.add_counts("class_counts", n_classes)

    def update(
        self, confidence: Tensor, classes: Tensor, known: Tensor, on_unknown: Tensor, *, object_classes: Tensor
    ) -> None:
        """Take boxes called ID of some images, and the ID objects of these images.

        Args:
            confidence: The detector's own, shape (boxes,).
            classes: Predicted class, shape (boxes,).
            known: Number of the ID object of that class that a box hits, among those of these images; -1 = none.
            on_unknown: Whether a box hits an unknown object, shape (boxes,).
            object_classes: Class of every ID object of these images, shape (objects,).

        Raises:
            InvalidArgumentError: Shapes do not fit, or a class or object does not exist.
        """
        labels, numbers = as_integers(classes, "classes"), as_integers(known, "known")
        of_objects = as_integers(object_classes, "object_classes")
        n = len(self.class_counts)
        for name, found in (("classes", labels), ("object_classes", of_objects)):
            if len(found) and not 0 <= int(found.min()) <= int(found.max()) < n:
                raise InvalidArgumentError(f"WildernessImpact: {name} must be in 0..{n - 1}")
        if not len(confidence) == len(labels) == len(numbers) == len(on_unknown):
            raise InvalidArgumentError("WildernessImpact: fields differ in their number of boxes")
        self.add_batch(numbers, len(of_objects))
        self.append("confidence", as_numbers(confidence, "confidence"))
        self.append("classes", labels)
        self.append("on_unknown", on_unknown)
        self.class_counts += torch.bincount(of_objects, minlength=n).to(self.class_counts.device)

    def result(self) -> Tensor:
        """The value of all boxes."""
        known, _ = self.all_objects()
        confidence, classes, on_unknown = (self.numbers(n) for n in ("confidence", "classes", "on_unknown"))
        boxes = ClassifiedBoxes(confidence, classes, known, on_unknown, self.class_counts.cpu().numpy())
        value = wilderness_of(boxes, recall=self.recall)
        return self._float(undefined("WildernessImpact", value.reason) if value.reason else value.value)
