"""Parts of the record of a run: each documents the fields of one entry of `run.json`."""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def written(make: Callable[[], T]) -> T:
    """A default that is written to the file, made by a call; other defaults are left out of the file."""

    def default() -> T:  # as its own factory, `dict` would be left out where it is empty
        return make()

    value: T = msgspec.field(default_factory=default)
    return value


class BackboneRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The network of a run.

    Args:
        name: Name of the network; empty if unknown.
        fingerprint: Identifies weights and transform by what they do.
        width: Number of features.
        num_classes: Number of logits; 0 = the network returns none.
        head_problem: Why there is no linear head; None if there is one.
    """

    name: str = written(str)
    fingerprint: str = written(str)
    width: int = written(int)
    num_classes: int = written(int)
    head_problem: str | None = written(lambda: None)


class PublishedAs(msgspec.Struct, frozen=True):
    """Names of weights and transform in timm.

    Args:
        model: timm's name of the weights.
        img_size: Pixels of the side of an image.
        crop_pct: Share of the resized image that the crop keeps.
    """

    model: str
    img_size: int
    crop_pct: float


class ClassifierRecord(BackboneRecord, frozen=True, omit_defaults=True, kw_only=True):
    """The classifier of a run of images.

    Args:
        head: Names of the layers that make up the head, joined by " + ".
        transform: The transform as text.
        transform_recipe: How to rebuild the transform; None if this is unknown.
        arguments: Arguments of `OODModule`; None if the run read recorded outputs.
        input_shape: Shape of an image after the transform.
        published_as: What timm publishes about these weights with this transform; None if nothing.
        one_shape: Whether all images had the same shape after the transform; None until the end of the run.
    """

    head: str = written(str)
    transform: str = written(str)
    transform_recipe: Any = written(lambda: None)
    arguments: dict[str, Any] | None = written(lambda: None)
    input_shape: list[int] = written(list)
    published_as: PublishedAs | None = written(lambda: None)
    one_shape: bool | None = None

    @property
    def is_untrained(self) -> bool:
        """Whether timm created the network with random weights."""
        made = self.arguments or {}
        return made.get("backbone") is not None and made.get("weights", "") is None


class DetectorConfig(msgspec.Struct, frozen=True):
    """How to build a detector, in the form of jsonargparse.

    Args:
        class_path: Dotted path of the class.
        init_args: Arguments of its constructor; a detector within is a mapping of the same form.
    """

    class_path: str
    init_args: dict[str, Any] = {}


class DetectorOverview(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a detector needs and costs; see `oodlit.detectors.Overview`.

    Args:
        reads: See `oodlit.detectors.Overview`.
        is_fitted: The same.
        cost: The same.
        tuned: The same.
        same_order_as: By name of another detector of the run, why the two can order all images alike.
        display_name: See `oodlit.detectors.Detector`; empty = the name of the class.
    """

    reads: str
    is_fitted: bool
    cost: str
    tuned: str
    same_order_as: dict[str, str] = {}
    display_name: str = ""


class ReferenceRecord(msgspec.Struct, frozen=True):
    """The paper of a detector; see `oodlit.detectors.Reference`."""

    title: str
    authors: str
    venue: str
    year: int
    url: str
    deviations: str = ""


class StreamRecord(msgspec.Struct, frozen=True):
    """A stream of the data module.

    Args:
        name: Name of the stream.
        role: What it is for.
        images: Number of its images, including those that were skipped when they were recorded.
    """

    name: str
    role: str
    images: int


class DataRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How images were loaded.

    Args:
        batch_size: Images per batch and device.
        num_workers: Processes that load images, per device.
        on_error: "raise" or "skip".
        streams: All streams in their order.
        train_images: Number of training images; None for boxes.
        decoder: What decoded the files, see `oodlit.datamodules.stream_identity.decoder_of`; empty = `decode_image`.
    """

    batch_size: int = written(int)
    num_workers: int = written(int)
    on_error: str = written(str)
    streams: list[StreamRecord] = written(list)
    train_images: int | None = None
    decoder: str = ""


class TrainerRecord(msgspec.Struct, frozen=True):
    """What the Trainer ran on.

    Args:
        accelerator: Class of the accelerator.
        strategy: Class of the strategy.
        precision: Name of the precision, as the Trainer accepts it.
        processes: Number of processes.
        device: Name of the GPU or CPU.
    """

    accelerator: str = ""
    strategy: str = ""
    precision: str = ""
    processes: int = 1
    device: str = ""


class PixelDeviation(msgspec.Struct, frozen=True):
    """Differences between JPEG pixels decoded by a device and by the CPU, on a scale of 0 to 255."""

    largest: float | None = None
    mean: float | None = None


class AccelerationRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Options that speed up a run, and the resulting deviation from outputs of the plain network.

    Args:
        channels_last: See `OODModule`.
        compile: See `OODModule`.
        precision: Name of a mixed precision, as the Trainer accepts it.
        decode_on_device: Whether a device decoded the JPEGs.
        deviation_of_logits: Largest deviation in the first images, as a share of the spread of the logits.
        deviation_of_features: The same of features, for a network without logits.
        deviation_of_scores: The same of scores, by detector.
        deviation_of_pixels: The same of pixels, where a device decoded.
    """

    channels_last: bool = False
    compile: bool | str | None = None
    precision: str = ""
    decode_on_device: bool = False
    deviation_of_logits: float | None = None
    deviation_of_features: float | None = None
    deviation_of_scores: dict[str, float | None] = {}
    deviation_of_pixels: PixelDeviation | None = None


class SkippedImage(msgspec.Struct, frozen=True):
    """An image that could not be used.

    Args:
        key: Its key, which begins with the name of the stream.
        reason: Why it could not be used.
    """

    key: str
    reason: str


class UndefinedValue(msgspec.Struct, frozen=True):
    """An undefined value (NaN) of the table, with the reason.

    Args:
        detector: Name of the detector, or "model" for the classifier alone.
        dataset: Name of the data set.
        ood_class: Name of the class; empty for the whole data set.
        metric: Name of the metric.
        reason: Why the value is undefined.
    """

    detector: str
    dataset: str
    ood_class: str
    metric: str
    reason: str


class PoolRecord(msgspec.Struct, frozen=True):
    """What identifies a pool; runs with different pools cannot be compared by level.

    Args:
        classes: Number of classes in use.
        id_classes: Number of classes that the classifier knows, which is the number of classes per level.
        split: Which images are test images, as text.
        estimation: Number of estimation images.
        test: Number of test images.
        fewest_per_class: Smallest numbers of estimation and of test images of a class.
        most_per_class: Largest numbers of estimation and of test images of a class.
        fingerprint: Digest of classes, keys and parts of all images.
    """

    classes: int
    id_classes: int | None
    split: str
    estimation: int
    test: int
    fewest_per_class: list[int]
    most_per_class: list[int]
    fingerprint: str


class TimeRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where the time of a run went, in seconds.

    Args:
        mean: By part of the run and in "total", the mean over the processes.
        max: The same, the largest of all processes.
        fit: By detector, the largest of all processes.
        reading: By step of loading an image, the sum over all loading processes; empty if not measured.
        backbone_ms: Milliseconds per image of the network; None if no network ran.
    """

    mean: dict[str, float] = written(dict)
    max: dict[str, float] = written(dict)
    fit: dict[str, float] = written(dict)
    reading: dict[str, float] = {}
    backbone_ms: float | None = None


class Unfinished(msgspec.Struct, frozen=True, omit_defaults=True):
    """The data sets that an interrupted run has not finished.

    Args:
        missing: Names of the data sets without results.
        is_running: Whether the run was still running when its results were read.
    """

    missing: list[str]
    is_running: bool = False
