"""Prepare a run: probe the backbone, and choose the applicable detectors and the outputs that they require."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from oodlit._lightning import pl
from oodlit.backbones.backbone import Backbone
from oodlit.backbones.facts import IS_RANDOM
from oodlit.base.errors import DataError, InvalidArgumentError
from oodlit.base.outputs import BackboneFacts
from oodlit.base.plan import RunPlan
from oodlit.base.roles import Role
from oodlit.datamodules.batches import Transform
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.loader import StreamLoader
from oodlit.datamodules.stream import Stream
from oodlit.detectors import Detector, FitOrigin
from oodlit.results import Finding
from oodlit.runs.earlier_fit import EarlierFit
from oodlit.scoring.applicable import applicable

PROBE_IMAGES = 2


@dataclass(frozen=True)
class Choice:
    """Detectors, transform and facts that are fixed before the first batch.

    Args:
        transform: From a decoded image to the network's input.
        fingerprint: Of weights and transform, before the strategy converts or moves the weights.
        facts: What the probe told of the backbone.
        images: What the probe was made with.
        detectors: Those that apply, by name.
        not_applicable: The others, with the reason.
        kept: Names of detectors whose earlier fit is used.
        findings: What the class lists of data and network say.
        earlier: What the kept fits belong to; None where it is unknown.
        fit: Digest of the kept fits; empty if there are none.
    """

    transform: Transform | None
    fingerprint: str
    facts: BackboneFacts
    images: Any
    detectors: dict[str, Detector]
    not_applicable: dict[str, str]
    kept: frozenset[str]
    findings: tuple[Finding, ...] = ()
    earlier: FitOrigin | None = None
    fit: str = ""

    @property
    def to_fit(self) -> list[Detector]:
        """Detectors that this run fits."""
        return [detector for name, detector in self.detectors.items() if name not in self.kept]

    def plan(self, *, train_thresholds: bool) -> RunPlan:
        """What the run requires of module and data module."""
        needs = frozenset().union(*(d.required_needs for d in self.detectors.values()))
        return RunPlan(
            transform=self.transform,
            use_train=self.facts.num_train > 0
            and (train_thresholds or any(d.required_statistics for d in self.to_fit)),
            extra_outputs=needs & {"images", "hidden", "model"},
            hidden_layers=hidden_layers(self.detectors.values()),
        )


class Probe(NamedTuple):
    """Facts about a backbone, determined from the first ID images.

    Args:
        transform: From a decoded image to the network's input.
        images: Those images, as a batch has them.
        facts: What the backbone made of them.
        fingerprint: Of weights and transform.
        findings: What the class lists of data and network say.
    """

    transform: Transform | None
    images: Any
    facts: BackboneFacts
    fingerprint: Callable[[], str]
    findings: tuple[Finding, ...] = ()


def probe(trainer: pl.Trainer, module: Backbone, datamodule: OODDataModule, *, layers: Sequence[str] = ()) -> Probe:
    """Pass the first ID images through the backbone, to check that data, transform and network fit together.

    Args:
        trainer: Of the run; its precision is that of the pass.
        module: The backbone.
        datamodule: The streams.
        layers: Hidden layers that are asked for.

    Raises:
        DataError: No ID image can be used.
        InvalidArgumentError: The network cannot take the images, or gives no logits, probabilities or NaN.
    """
    transform = datamodule.transform_for(module)
    images = probe_images(datamodule, transform)
    num_train = sum(_size(stream, trainer, datamodule) for stream in datamodule.streams if stream.role is Role.TRAIN)
    facts = module.probe(images, num_train=num_train, layers=layers, precision=trainer.precision_plugin)
    fingerprint = partial(module.fingerprint_with, transform)
    return Probe(transform, images, facts, fingerprint, (*_class_lists(datamodule, facts), *randomness(facts)))


def hidden_layers(detectors: Iterable[Detector]) -> tuple[str, ...]:
    """Hidden layers that detectors require."""
    return tuple(dict.fromkeys(layer for detector in detectors for layer in detector.required_layers))


def choose(probe: Probe, detectors: Mapping[str, Detector], earlier: EarlierFit, *, strict: bool) -> Choice:
    """Decide which detectors run.

    Raises:
        RequirementError: A detector does not apply and `strict` is set, or none applies.
        FingerprintError: An earlier fit belongs to another backbone.
    """
    facts = probe.facts
    chosen, reasons = applicable(detectors, facts, strict=strict)
    kept = earlier.kept(chosen, has_train=facts.num_train > 0)
    here = FitOrigin(probe.fingerprint(), facts.width, facts.num_classes)
    fits = {name: chosen[name] for name in sorted(kept)}
    earlier.check(fits, here)
    return Choice(
        probe.transform,
        here.fingerprint,
        facts,
        probe.images,
        chosen,
        reasons,
        kept,
        probe.findings,
        earlier.origin,
        earlier.digest(fits),
    )


def cost_text(detectors: Mapping[str, Detector]) -> str:
    """Cost of detectors that make extra forward passes, as text; empty if there are none.

    Example:
        >>> from oodlit.detectors import MSP, ODIN
        >>> cost_text({"msp": MSP(), "odin": ODIN()})
        'extra forward passes per image: odin 2; the network runs 3 times per image instead of once'
    """
    passes = {name: detector.extra_passes for name, detector in detectors.items() if detector.extra_passes}
    if not passes:
        return ""
    listed = ", ".join(f"{name} {number}" for name, number in passes.items())
    times = 1 + sum(passes.values())
    return f"extra forward passes per image: {listed}; the network runs {times} times per image instead of once"


def _class_lists(datamodule: OODDataModule, facts: BackboneFacts) -> Iterator[Finding]:
    """Report if the data has more or fewer classes than the network.

    Raises:
        InvalidArgumentError: The data has a subset of the classes, and the network has another number of logits.
    """
    names = len(datamodule.class_names)
    if datamodule.class_subset and facts.num_classes not in (0, len(datamodule.class_subset)):
        raise InvalidArgumentError(
            f"class_subset of the data has {len(datamodule.class_subset)} classes, but the network returns"
            f" {facts.num_classes} logits; pass OODModule(..., class_subset=data.class_subset)"
        )
    if names and facts.num_classes and names != facts.num_classes:
        yield Finding(
            "class_lists",
            f"the network returns {facts.num_classes} logits, but the data has {names} classes. Label i is"
            " compared with logit i. If the logits have another order, pass class_names=[...] to the data module, with"
            " all classes of the network in the order of its logits",
        )


def randomness(facts: BackboneFacts) -> list[Finding]:
    """A finding if the network has random outputs; the probe already warned about this."""
    return [Finding("random", f"network {facts.name} {IS_RANDOM}")] if facts.is_random else []


def _size(stream: Stream, trainer: pl.Trainer, datamodule: OODDataModule) -> int:
    """Number of images of a stream that this run reads; the Trainer can limit it."""
    limit = trainer.limit_predict_batches
    if isinstance(limit, float):  # a share of the batches
        return min(len(stream), max(1, round(limit * len(stream))))
    return min(len(stream), int(limit) * datamodule.batch_size * trainer.world_size)


def probe_images(datamodule: OODDataModule, transform: Transform | None) -> Any:
    """Load the first usable ID images as a batch; this also tests data and transform before the run.

    Raises:
        DataError: No ID image can be used.
    """
    stream = next(s for s in datamodule.streams if s.role is Role.ID)
    loader = StreamLoader(
        stream,
        transform,
        batch_size=PROBE_IMAGES,
        on_error=datamodule.on_error,
        decode=datamodule.decode,
        any_size=datamodule.any_size,
        decode_on="cpu" if datamodule.decode_on_device else None,  # exact there, and refuses unknown steps
    )
    skipped: list[tuple[str, str]] = []
    for batch in loader:
        if batch["key"]:
            return batch["image"]
        skipped += batch["skipped"]
    raise DataError(
        f"data set {stream.name!r}: none of {len(stream)} images can be used (first: {skipped[0][0]}, {skipped[0][1]})"
    )
