"""The detector contract: what a detector requires, how it is fitted, and how it scores."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.base.checks import (
    WITHOUT_FLOAT64,
    check_finite,
    check_head,
    check_outputs,
    check_shapes,
    memo_key,
    plain_mode,
    sizes_of,
    where_float64_is,
)
from oodlit.base.errors import InvalidArgumentError, NotFittedError, RequirementError
from oodlit.base.fingerprint import check_same
from oodlit.base.outputs import NEEDS, BackboneFacts, Head, Outputs, Scores, version_of
from oodlit.base.text.singular import singular
from oodlit.detectors.contract.configured import Configured
from oodlit.detectors.contract.placement import follow
from oodlit.detectors.contract.reference import Reference
from oodlit.detectors.contract.shared_tensors import refuse_writes_in_fit, refuse_writes_in_score
from oodlit.detectors.statistics import Statistic, Statistics

_log = logging.getLogger("oodlit.detectors")
_WORDS = {"hidden": "hidden activations", "model": "access to the network"}

Requirement: TypeAlias = "Callable[[Any, BackboneFacts], str]"
"""Function of a detector and the facts. It returns why the detector is not applicable, or an empty text if it is."""


class Detector(Configured, ABC):
    """Base class of detectors, which score every image: higher = more in-distribution.

    A subclass is final. It declares `needs`, `statistics` and `reference`, stores the constructor arguments under their
    own names, and implements `_fit` and `_score`. Fitted state lives in buffers: tensors that `_fit` stores with
    `self.keep(name=tensor)` are saved, loaded and moved between devices.

    Example:
        >>> class Largest(TrainFreeDetector):
        ...     needs = frozenset({"logits"})
        ...     reference = Reference("Largest logit", "A. Nonymous", "example", 2024, "https://example.org")
        ...     def _score(self, outputs):
        ...         return outputs.require("logits").amax(dim=1)
        >>> Largest().score(Outputs(torch.tensor([[1.0, 3.0], [2.0, 0.0]]))).tolist()
        [3.0, 2.0]
    """

    needs: frozenset[str]
    """Exactly the names in `NEEDS` that the detector reads. Set in the constructor if they depend on settings."""
    statistics: tuple[type[Statistic], ...] = ()
    """Statistics of the training set that the fit requires; empty for a train-free detector."""
    sample_fields: ClassVar[frozenset[str] | None] = None
    """Fields of `TrainSample` that the fit reads, by their names in `FIELDS`; None = the fields in `needs`."""
    reference: ClassVar[Reference]
    """The paper."""
    display_name: ClassVar[str] = ""
    """Name for readers of pages, figures and exported tables; empty = the name of the class."""
    requirements: ClassVar[tuple[Requirement, ...]] = ()
    """Conditions beyond `needs`, for example non-negative features."""
    invariances: frozenset[str] = frozenset()
    """Names of invariances that the conformance suite tests (`oodlit.testing`); may be set in the constructor."""
    same_order_as: ClassVar[Mapping[str, str]] = {}
    """Keys of detectors that can rank images identically, each with the reason; reported when a run shows it."""
    log_probability: bool = False
    """Whether the score is a log probability, so that `confidences` returns its exponential."""
    host_buffers: ClassVar[frozenset[str]] = frozenset()
    """Buffers too large to follow the device of the outputs. A run moves them to its device once if they fit (see
    `placement`); otherwise `_score` moves them in parts. Scalars among them stay on the CPU."""
    layers: tuple[str, ...] = ()
    """Names of the hidden activations to read, if `needs` contains "hidden"."""
    min_train: int = 0
    """Minimum number of training images for a fit, known from the settings before a run."""
    extra_passes: int = 0
    """Extra forward passes per image, in addition to the one that every run makes."""
    assumes_non_negative: ClassVar[bool] = False
    """Whether the detector is designed for features after a ReLU, and loses its effect with negative ones."""
    compares_images: bool = False
    """Whether an image is compared with stored training images (a bank), so that the cost grows with their number."""
    notes: tuple[str, ...] = ()
    """What a user should know about the last fit, for example classes without images. Also logged as warnings."""

    fitted_on: str = ""
    """Fingerprint of the backbone that the fit belongs to; empty after a fit on outputs built by hand."""

    fit_id: object = None
    """Shared by all fits on the same statistics and head; None without a fit."""
    _shapes: Mapping[str, int] = MappingProxyType({})

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Tensor:
            """Undeclared attributes are buffers."""

    @abstractmethod
    def _fit(self, statistics: Statistics, head: Any) -> None:
        """Derive the fitted state from the statistics and the head, if any; store tensors with `keep`."""

    @abstractmethod
    def _score(self, outputs: Outputs) -> Float[Tensor, " batch"]:
        """Return the scores of a batch, higher = in-distribution; must not change `outputs`."""

    def kept_bytes(self, facts: BackboneFacts) -> int:
        """Return the memory of a fitted detector beyond the statistics, in bytes, if it is worth announcing."""
        return 0

    @final
    def fit(self, statistics: Statistics | None = None, head: Head | None = None) -> None:
        """Fit on the training set, replacing any earlier fit.

        Args:
            statistics: The accumulated statistics named in `statistics`.
            head: The linear head, if `needs` contains "head".

        Raises:
            RequirementError: The head or a statistic is missing, or the settings do not fit the data.
            InvalidArgumentError: This or an earlier detector wrote to tensors shared by all fits.
        """
        self.require_head(head)
        given = Statistics() if statistics is None else statistics
        if missing := [s.__name__ for s in self.required_statistics if s not in given or given[s].num_samples == 0]:
            raise RequirementError(
                f"{self!r}: expected training images to fit on, got none (missing statistics: {', '.join(missing)}); "
                "call oodlit.detectors.fit([...], batches, head) with at least one image"
            )
        if head is not None and head.weight.device.type in WITHOUT_FLOAT64:
            head = head.to("cpu")
        self._fitted = False
        self.notes, self.fitted_on = (), ""
        needs = self.required_needs
        shapes = {name: size for name, size in given.sizes.items() if name in needs}
        if head is not None and "head" in needs:
            check_head(self, head)
            of_head = {"logits": head.num_classes, "features": head.width}
            check_shapes(self, of_head, given.shapes, "the head is for", "the training images have")
            shapes |= {name: size for name, size in of_head.items() if name in needs}
        with plain_mode():
            for child in self.nested_detectors():
                child.fit(given, head)
                self.notes += tuple(f"part {child!r}: {note}" for note in child.notes)
            with refuse_writes_in_fit(self, given, head):
                self._fit(given, head)
        self._shapes = shapes
        if self.has_fit:
            key = () if head is None else memo_key(head.weight, head.offset)
            self.fit_id = given.memo(("fit", key), object)
        self._fitted = True

    @final
    def require_head(self, head: Head | None) -> None:
        """Raise if the detector requires a linear head and there is none.

        Raises:
            RequirementError: The head is missing.
        """
        if "head" in self.required_needs and head is None:
            raise RequirementError(f"{self!r} needs the linear head of the classifier; pass head=Head(...) to fit")

    @final
    def forget(self) -> None:
        """Drop the fit; `score` then raises `NotFittedError` until the next fit."""
        self._fitted = False

    @property
    def content(self) -> str:
        """Hash of the files that the settings name, of nested detectors as well; empty if there are none."""
        return "".join(child.content for child in self.nested_detectors())

    @property
    def fitted_sizes(self) -> Mapping[str, int]:
        """Numbers of logits and features in the fit; unknown numbers are omitted."""
        return self._shapes

    @final
    def restore(self, sizes: Mapping[str, int], notes: Sequence[str], fitted_on: str) -> None:
        """Mark this and all nested detectors as fitted, after their buffers were loaded from a saved fit.

        Args:
            sizes: See `fitted_sizes`.
            notes: See `notes`.
            fitted_on: See `fitted_on`.
        """
        for part in self.modules():
            if isinstance(part, Detector):
                part._fitted, part.fit_id = True, object() if part.has_fit else None
        self._shapes, self.notes, self.fitted_on = dict(sizes), tuple(notes), fitted_on

    @final
    def adopt(self, twin: "Detector") -> None:
        """Take over the fit of a detector with the same class, settings and state; their tensors are then shared."""
        for own, other in zip(self.modules(), twin.modules(), strict=True):
            for name, buffer in other.named_buffers(recurse=False):
                setattr(own, name, buffer)
            if isinstance(own, Detector) and isinstance(other, Detector):
                own.fit_id = other.fit_id

    @property
    def identity(self) -> Hashable:
        """Equal for detectors that return the same scores: those with the same class, settings and fit.

        A write to a buffer changes it.
        """
        written = tuple(version_of(buffer) for buffer in self.buffers())
        return type(self), repr(self), self.fit_id, written, *(child.identity for child in self.nested_detectors())

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.fit_id = object()

    @property
    def is_built_in(self) -> bool:
        """Whether this and all nested detectors are oodlit's own; custom ones may write to shared tensors."""
        kinds = (type(part) for part in self.modules() if isinstance(part, Detector))
        return all(kind.__module__.partition(".")[0] == "oodlit" for kind in kinds)

    @final
    def unchecked_score(self, outputs: Outputs) -> Float[Tensor, " batch"]:
        """Return the scores without any check, for code that is traced and verifies the outputs itself."""
        return self._score(outputs)

    @final
    def score(self, outputs: Outputs) -> Float[Tensor, " batch"]:
        """Score a batch.

        Args:
            outputs: A batch with every field in `needs`.

        Returns:
            Shape (batch,), float32 or float64, higher = in-distribution; on the CPU if the device has no float64.

        Raises:
            NotFittedError: The detector requires a fit and has none.
            InvalidArgumentError: `outputs` is not an `Outputs`; a required field is missing, contains NaN or
                infinities, or differs in width from the fit; or the detector wrote to shared tensors.
        """
        check_outputs(self, outputs)
        if not self.is_fitted:
            raise NotFittedError(
                f"{self!r} is not fitted; call oodlit.detectors.fit([...], batches, head) or load a saved fit first"
            )
        outputs = where_float64_is(outputs)
        follow(self, outputs.device)
        # Outside inference mode, writes to derived tensors are counted and their inputs are protected.
        with plain_mode(), torch.autocast(outputs.device.type, enabled=False):
            self._check_inputs(outputs)
            with refuse_writes_in_score(self, outputs):
                scores = self._score_once(outputs)
        if scores.shape != (len(outputs),):
            raise InvalidArgumentError(
                f"{self!r}: expected one score per image, shape ({len(outputs)},), got shape {tuple(scores.shape)}"
            )
        return scores.clone()  # never a view of what other detectors read

    @final
    def _score_once(self, outputs: Outputs) -> Scores:
        """Score a batch; once for all equal detectors, alone or as parts of others."""
        if not self.is_built_in:
            return self._score(outputs)
        # In a tuple: never handed out, so that nobody can write to it.
        return outputs.memo(("score", self.identity), lambda: (self._score(outputs),))[0]

    @final
    def confidences(self, scores: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        """Convert scores to the quantity that papers average: the probability if a score is its logarithm.

        Rankings do not require this, but means over images do, since the mean of logarithms differs. `SeverityLevels`
        accepts the result.

        Args:
            scores: Return value of `score`, shape (batch,).

        Returns:
            Shape (batch,), float64; on the CPU if the device has no float64. Higher = in-distribution.

        Example:
            >>> from oodlit.detectors import MSP, Energy
            >>> logarithms = torch.tensor([0.5, 0.25], dtype=torch.float64).log()
            >>> MSP().confidences(logarithms).tolist(), Energy().confidences(torch.tensor([7.5])).tolist()
            ([0.5, 0.25], [7.5])
        """
        values = scores.cpu() if scores.device.type in WITHOUT_FLOAT64 else scores
        return values.double().exp() if self.log_probability else values.double()

    @property
    def is_fitted(self) -> bool:
        """Whether `score` can be called: after a fit, or if the detector requires neither statistics nor the head."""
        return self._fitted or not self.has_fit

    @property
    def has_fit(self) -> bool:
        """Whether the detector requires training images or the head, so that it must be fitted."""
        return bool(self.required_statistics or "head" in self.required_needs)

    @final
    def nested_detectors(self) -> list["Detector"]:
        """Return the detectors that this one is built from, such as the last part of `ReAct(then=Energy())`.

        Raises:
            InvalidArgumentError: The constructor did not call `super().__init__()`.
        """
        if "_modules" not in self.__dict__:
            raise InvalidArgumentError(
                f"the constructor of {type(self).__name__} must call super().__init__() before anything else"
            )
        return [child for child in self.children() if isinstance(child, Detector)]

    @property
    def required_needs(self) -> frozenset[str]:
        """`needs` of this detector and of its nested detectors."""
        children = self.nested_detectors()
        if not hasattr(self, "needs"):  # nn.Module would report an AttributeError as a missing `required_needs`
            raise InvalidArgumentError(
                f"{self!r} declares no `needs`; set it to a frozenset with some of the names {', '.join(sorted(NEEDS))}"
            )
        return frozenset().union(self.needs, *(c.required_needs for c in children))

    @property
    def required_statistics(self) -> tuple[type[Statistic], ...]:
        """`statistics` of this detector and of its nested detectors."""
        nested = (s for c in self.nested_detectors() for s in c.required_statistics)
        return tuple(dict.fromkeys((*self.statistics, *nested)))

    @property
    def required_layers(self) -> tuple[str, ...]:
        """`layers` of this detector and of its nested detectors."""
        return (*self.layers, *(layer for c in self.nested_detectors() for layer in c.required_layers))

    @final
    def why_not(self, facts: BackboneFacts) -> str:
        """Return why this detector is not applicable to a backbone; empty if it is."""
        needs = self.required_needs
        if "head" in needs and facts.head_problem:
            return f"needs the linear head; {facts.head_problem}"
        if absent := sorted(needs - facts.available - {"head"}):
            is_beyond = facts.hint and not {"images", "hidden", "model"}.isdisjoint(absent)
            needed = " and ".join(_WORDS.get(name, name) for name in absent)
            return f"needs {needed}" + (facts.hint if is_beyond else f", which {facts.name} does not provide")
        if self.required_statistics and facts.num_train == 0 and not self.is_fitted:
            return "needs training images for the fit, but the data has no training set"
        if self.min_train > facts.num_train and not self.is_fitted:
            return f"needs at least {self.min_train} training images, but the training set has {facts.num_train}"
        reasons = [requirement(self, facts) for requirement in self.requirements]
        unreadable = [layer for layer in self.layers if layer in facts.layer_problems]
        if unreadable and not any(reasons):
            return f"needs the layer {unreadable[0]!r}; {facts.layer_problems[unreadable[0]]}"
        nested = (child.why_not(facts) for child in self.nested_detectors())
        return next((reason for reason in (*reasons, *nested) if reason), "")

    def _check_inputs(self, outputs: Outputs) -> None:
        """Refuse outputs with a required field that is missing, not finite, or differs in width from the fit."""
        needs = self.required_needs
        known = self.required_layers if outputs.hidden is None else outputs.hidden
        missing = [f"{name}=..." for name in sorted(needs - {"head", "labels"}) if getattr(outputs, name) is None]
        missing += [f"hidden={{{layer!r}: ...}}" for layer in self.required_layers if layer not in known]
        if given := ", ".join(missing):
            raise InvalidArgumentError(f"{self!r}: the outputs are missing required fields; pass Outputs(..., {given})")
        if self.required_statistics or "head" in needs:
            check_same(self.fitted_on, outputs.backbone, source=repr(self))
        check_finite(self, outputs, needs)
        check_shapes(self, sizes_of(outputs, needs), self._shapes, "outputs have", "the fit was made on")

    @final
    def keep(self, **tensors: Tensor) -> None:
        """Store fitted tensors as buffers (`register_buffer`), which are saved, loaded and moved between devices."""
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def note_classes(self, is_missing: Tensor, what: str) -> None:
        """Note the classes that are missing something; `what` completes "2 classes (first: 1, 3) ..."."""
        if classes := is_missing.nonzero().flatten().tolist():
            self.note(f"{len(classes)} classes (first: {', '.join(map(str, classes[:3]))}) {what}")

    def note_setting(self, name: str, value: object, why: str) -> None:
        """Note the value of a setting that is None, such as "dim=24, chosen for 48 features"; it is not a warning."""
        if getattr(self, name) is None:
            self.notes = (*self.notes, f"{name}={value}, chosen for {why}")

    def note(self, message: str) -> None:
        """Add a message to `notes` and log it as a warning."""
        self.notes = (*self.notes, singular(message))
        _log.warning("%r: %s", self, self.notes[-1])


class TrainFreeDetector(Detector):
    """Base class of detectors without a fit; subclasses implement `_score` only."""

    @final
    def _fit(self, statistics: Statistics, head: Head | None) -> None:
        """Do nothing: there is no state."""
