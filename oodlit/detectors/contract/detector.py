"""The contract of a detector: what it needs, how it is fitted, how it scores."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from oodlit.base.checks import (
    WITHOUT_FLOAT64,
    check_finite,
    check_head,
    check_outputs,
    check_shapes,
    plain_mode,
    sizes_of,
    where_float64_is,
)
from oodlit.base.fingerprint import check_same
from oodlit.detectors.contract.class_paths import construct
from oodlit.detectors.contract.naming import parameters_of, snake_case
from oodlit.detectors.contract.placement import follow
from oodlit.detectors.contract.reference import Reference
from oodlit.detectors.statistics import Statistic, Statistics
from oodlit.errors import InvalidArgumentError, NotFittedError, RequirementError, UnknownNameError
from oodlit.outputs import NEEDS, BackboneFacts, Head, Outputs, version_of

D = TypeVar("D", bound="Detector")
_log = logging.getLogger("oodlit.detectors")

Requirement: TypeAlias = "Callable[[Any, BackboneFacts], str]"
"""A function of a detector and the facts that returns why the detector does not apply; empty if it does."""


class Detector(nn.Module, ABC):
    """A score for every image: higher = more in-distribution.

    A subclass is final. It declares `needs`, `statistics` and `reference`, stores the arguments of its constructor
    under their own names, and fills in `_fit` and `_score`. Fitted state lives in buffers: whatever `_fit` stores with
    `self.register_buffer(name, tensor)` is saved, loaded and moved between devices.

    Example:
        A whole detector:

        >>> class Largest(TrainFreeDetector):
        ...     needs = frozenset({"logits"})
        ...     reference = Reference("Largest logit", "A. Nonymous", "example", 2024, "https://example.org")
        ...     def _score(self, outputs):
        ...         return outputs.require("logits").amax(dim=1)
        >>> Largest().score(Outputs(torch.tensor([[1.0, 3.0], [2.0, 0.0]]))).tolist()
        [3.0, 2.0]
    """

    needs: frozenset[str]
    """The names in `NEEDS` that the detector reads, and no others. Set by the constructor where settings decide."""
    statistics: tuple[type[Statistic], ...] = ()
    """What must be known of the training set; empty for a train-free detector."""
    sample_fields: ClassVar[frozenset[str] | None] = None
    """What the fit reads of `TrainSample`, names of its `FIELDS`; None = what is in `needs`."""
    reference: ClassVar[Reference]
    """The paper."""
    requirements: ClassVar[tuple[Requirement, ...]] = ()
    """Conditions beyond `needs`, for example non-negative features."""
    invariances: ClassVar[frozenset[str]] = frozenset()
    """Names of invariances that hold and that the conformance kit tests; see `oodlit.testing`."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Published settings by name, see `preset`; nested detectors as {"class_path": ..., "init_args": ...}."""
    tuned_presets: ClassVar[frozenset[str]] = frozenset()
    """Names of the presets that were chosen by search on OOD data; `oodlit list detectors --verbose` says so."""
    same_order_as: ClassVar[Mapping[str, str]] = {}
    """Keys of detectors whose order of images can be the same, each with the reason; told where a run shows it."""
    log_probability: bool = False
    """Whether the score is the logarithm of a probability, so that `confidences` gives it back."""
    host_buffers: ClassVar[frozenset[str]] = frozenset()
    """Buffers too large to follow the device of the outputs: a run moves them there once if they fit (`placement`), and
    where they lie elsewhere `_score` moves their parts itself. Numbers among them are kept on the CPU."""
    layers: tuple[str, ...] = ()
    """Names of the hidden activations that are read, where `needs` has "hidden"."""
    min_train: int = 0
    """Fewest training images that a fit can do with; known from the settings, before a run."""
    extra_passes: int = 0
    """Forward passes per image beyond the one that every run makes."""
    assumes_non_negative: ClassVar[bool] = False
    """True if it is made for features after a ReLU; signed ones are refused, noted, or lose their meaning in part."""
    compares_images: bool = False
    """True if an image is compared with stored training images (a bank): its cost grows with their number."""
    notes: tuple[str, ...] = ()
    """What a user should know of the last fit, for example classes without an image. Also logged as warnings."""

    fitted_on: str = ""
    """Fingerprint of the backbone that the fit belongs to; empty after a fit on outputs that were made by hand."""

    _fitted: bool = False
    _shapes: Mapping[str, int] = MappingProxyType({})
    """Number of logits and features that the fit belongs to, where they are known."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Tensor:
            """Whatever is not declared is a buffer."""

    @abstractmethod
    def _fit(self, statistics: Statistics, head: Head | None) -> None:
        """Derive the state from the statistics and the head; store tensors with `register_buffer`."""

    @abstractmethod
    def _score(self, outputs: Outputs) -> Float[Tensor, " batch"]:
        """Scores of a batch, higher = in-distribution; must not change `outputs`."""

    def kept_bytes(self, facts: BackboneFacts) -> int:
        """Memory that a fitted detector takes beyond the statistics, in bytes, as far as it is worth announcing."""
        return 0

    @final
    def fit(self, statistics: Statistics | None = None, head: Head | None = None) -> None:
        """Fit on the training set, replacing any earlier fit.

        Args:
            statistics: The facts that `statistics` names.
            head: The linear head, if `needs` has "head".

        Raises:
            RequirementError: The head or a statistic is missing, or the settings do not fit the data.
            InvalidArgumentError: The detector, or an earlier one, writes to what others are fitted on as well.
        """
        if "head" in self.required_needs and head is None:
            raise RequirementError(f"{self!r} needs the linear head of the classifier; pass head=Head(weight, bias)")
        given = Statistics() if statistics is None else statistics
        missing = [s.__name__ for s in self.required_statistics if s not in given or given[s].num_samples == 0]
        if missing:
            raise RequirementError(f"{self!r} must be fitted on training images; missing: {', '.join(missing)}")
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
            for child in self._children():
                child.fit(given, head)
                self.notes += child.notes
            self._fit_unshared(given, head)
        self._shapes = shapes
        self._fitted = True

    @final
    def forget(self) -> None:
        """Drop the fit: `score` raises `NotFittedError` until the next one."""
        self._fitted = False

    @final
    def score(self, outputs: Outputs) -> Float[Tensor, " batch"]:
        """Scores of a batch.

        Args:
            outputs: A batch; every field in `needs` must be there.

        Returns:
            Shape (batch,), float32 or float64, higher = in-distribution; on the CPU where the device has no float64.

        Raises:
            NotFittedError: The detector needs a fit and has none.
            InvalidArgumentError: `outputs` is none of the kind, or a needed field is missing, holds NaN or infinities,
                or is not as wide as in the fit, or the detector writes to what it shares with others.
        """
        check_outputs(self, outputs)
        if not self.is_fitted:
            raise NotFittedError(
                f"{self!r} is not fitted; call oodlit.detectors.fit([...], batches, head) or load a saved fit first"
            )
        outputs = where_float64_is(outputs)
        follow(self, outputs.device)
        # Out of inference mode: what is derived is then counted when it is written to, and its inputs cannot be.
        with plain_mode(), torch.autocast(outputs.device.type, enabled=False):
            self._check_inputs(outputs)
            scores = self._score_unshared(outputs)
        if scores.shape != (len(outputs),):
            raise InvalidArgumentError(
                f"{self!r} gave scores of shape {tuple(scores.shape)} for {len(outputs)} images; (batch,) is needed"
            )
        return scores.clone()  # never a view of what other detectors read

    @final
    def confidences(self, scores: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        """Scores as the papers average them: the probability where a score is its logarithm, else the score itself.

        Rankings do not need it. A mean over images does: it is not that of the logarithms. `SeverityLevels` takes it.

        Args:
            scores: What `score` gave, shape (batch,).

        Returns:
            Shape (batch,), float64; on the CPU where the device has no float64. Higher = in-distribution.

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
        """True if `score` can be called: after a fit, or if neither statistics nor the head are needed."""
        return self._fitted or not (self.required_statistics or "head" in self.required_needs)

    @property
    def required_needs(self) -> frozenset[str]:
        """`needs` of this detector and of those inside it."""
        children = self._children()
        if not hasattr(self, "needs"):  # an AttributeError here would read as if there were no `required_needs`
            raise InvalidArgumentError(
                f"{self!r} declares no `needs`; give a frozenset of names: {', '.join(sorted(NEEDS))}"
            )
        return frozenset().union(self.needs, *(c.required_needs for c in children))

    @property
    def required_statistics(self) -> tuple[type[Statistic], ...]:
        """`statistics` of this detector and of those inside it."""
        nested = (s for c in self._children() for s in c.required_statistics)
        return tuple(dict.fromkeys((*self.statistics, *nested)))

    @property
    def required_layers(self) -> tuple[str, ...]:
        """`layers` of this detector and of those inside it."""
        return (*self.layers, *(layer for c in self._children() for layer in c.required_layers))

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of the constructor, as stored.

        Raises:
            InvalidArgumentError: The constructor does not store an argument under its own name.
        """
        stored = self._stored_settings()
        lost = [name for name in parameters_of(type(self)) if name not in stored]
        if lost:
            raise InvalidArgumentError(
                f"{self!r}: the argument {lost[0]!r} of the constructor is not stored under its own name;"
                f" write self.{lost[0]} = {lost[0]}"
            )
        return stored

    @classmethod
    def preset(cls: type[D], name: str, **changes: Any) -> D:
        """The detector with published settings.

        Args:
            name: A key of `presets`.
            changes: Settings that replace those of the preset.

        Raises:
            UnknownNameError: There is no such preset.
            InvalidArgumentError: The constructor has no such setting.

        Example:
            >>> from oodlit.detectors import KNN
            >>> KNN.preset("1-percent")
            KNN(k=10, bank_size=12811)
        """
        if not cls.presets:
            raise UnknownNameError(f"{cls.__name__} has no presets, got {name!r}; write {cls.__name__}(...)")
        if name not in cls.presets:
            raise UnknownNameError.of(f"preset of {cls.__name__}", name, cls.presets)
        return construct(cls, {**cls.presets[name], **changes}, Detector)

    @classmethod
    def key(cls) -> str:
        """The name in tables and files: the class in snake_case.

        Example:
            >>> TrainFreeDetector.key()
            'train_free_detector'
        """
        return snake_case(cls.__name__)

    @final
    def why_not(self, facts: BackboneFacts) -> str:
        """Why this detector does not apply to a backbone; empty if it does."""
        needs = self.required_needs
        if "head" in needs and facts.head_problem:
            return f"needs the linear head; {facts.head_problem}"
        absent = sorted(needs - facts.available - {"head"})
        if absent:
            is_beyond = facts.hint and not {"images", "hidden", "model"}.isdisjoint(absent)
            return f"needs {', '.join(absent)}" + (facts.hint if is_beyond else f", which {facts.name} does not give")
        if self.required_statistics and facts.num_train == 0 and not self.is_fitted:
            return "needs a train stream to be fitted on; the data has none"
        if self.min_train > facts.num_train and not self.is_fitted:
            return f"needs at least {self.min_train} training images, the train stream has {facts.num_train}"
        if unreadable := [layer for layer in self.layers if layer in facts.layer_problems]:
            return f"needs the layer {unreadable[0]!r}; {facts.layer_problems[unreadable[0]]}"
        reasons = (requirement(self, facts) for requirement in self.requirements)
        nested = (child.why_not(facts) for child in self._children())
        return next((reason for reason in (*reasons, *nested) if reason), "")

    def extra_repr(self) -> str:
        """Settings that differ from their default; `name=?` where one was not stored, as messages show settings."""
        stored = self._stored_settings()
        written = {n: repr(stored[n]) if n in stored else "?" for n in parameters_of(type(self))}
        return ", ".join(f"{n}={written[n]}" for n, v in parameters_of(type(self)).items() if written[n] != repr(v))

    def __repr__(self) -> str:
        """The detector as one would write it in code."""
        return f"{type(self).__name__}({self.extra_repr()})"

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse to change a setting after the fit: the fitted state was derived from it."""
        if self._fitted and name in parameters_of(type(self)):
            raise AttributeError(f"{self!r} is fitted and its setting {name!r} is frozen; make a new detector")
        super().__setattr__(name, value)

    def _fit_unshared(self, statistics: Statistics, head: Head | None) -> None:
        """Fit, and refuse a detector that writes to what others are fitted on as well."""
        of_head = [] if head is None else [("head.weight", head.weight), ("head.bias", head.offset)]
        before = [version_of(tensor) for _, tensor in of_head]
        statistics.check_unchanged()
        self._fit(statistics, head)
        changed = [
            name for (name, tensor), version in zip(of_head, before, strict=True) if version_of(tensor) != version
        ]
        changed += statistics.changed()
        if changed:
            raise InvalidArgumentError(
                f"{self!r} wrote to what other detectors are fitted on as well: {', '.join(changed)};"
                " use operations that are not in place, or copy first"
            )

    def _score_unshared(self, outputs: Outputs) -> Tensor:
        """Score, and refuse a detector that writes to what others read, or outputs that an earlier one wrote to."""
        if earlier := outputs.changed_fields():
            raise InvalidArgumentError(
                f"{self!r}: {', '.join(earlier)} of these outputs were written to after they were made, by a detector"
                " that scored them before or by other code; make the outputs anew"
            )
        cause: RuntimeError | None = None
        try:
            scores = self._score(outputs)
        except RuntimeError as error:
            if "Inplace update to inference tensor" not in str(error):
                raise
            cause = error  # torch has written by then
            outputs.mark_written()
        if changed := outputs.changed():
            raise InvalidArgumentError(
                f"{self!r} wrote to tensors that it shares with other detectors: {', '.join(changed)};"
                " use operations that are not in place, or copy first"
            ) from cause
        return scores

    def _check_inputs(self, outputs: Outputs) -> None:
        """Refuse outputs in which a needed field is missing, not finite, or not as wide as in the fit."""
        needs = self.required_needs
        for name in sorted(needs & {"logits", "features", "images"}):
            outputs.require(name)
        for name in ("hidden", "model"):
            if name in needs and getattr(outputs, name) is None:
                raise InvalidArgumentError(f"{self!r} needs Outputs.{name}, but this backbone gives none")
        for layer in self.layers:
            if layer not in (outputs.hidden or {}):
                raise InvalidArgumentError(f"{self!r} needs the hidden activation {layer!r}, which was not captured")
        if self.required_statistics or "head" in needs:
            check_same(self.fitted_on, outputs.backbone, source=repr(self))
        check_finite(self, outputs, needs)
        check_shapes(self, sizes_of(outputs, needs), self._shapes, "outputs have", "the fit was made on")

    def note(self, message: str) -> None:
        """Add a message to `notes`, and log it as a warning."""
        self.notes = (*self.notes, message)
        _log.warning("%r: %s", self, message)

    def _stored_settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in parameters_of(type(self)) if hasattr(self, name)}

    def _children(self) -> list["Detector"]:
        if "_modules" not in self.__dict__:
            raise InvalidArgumentError(
                f"the constructor of {type(self).__name__} must call super().__init__() before anything else"
            )
        return [child for child in self.children() if isinstance(child, Detector)]


class TrainFreeDetector(Detector):
    """A detector without anything to fit: subclasses fill in `_score` alone."""

    @final
    def _fit(self, statistics: Statistics, head: Head | None) -> None:
        """There is nothing to fit."""
