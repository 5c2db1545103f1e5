"""The data of one run: its streams, with one predict loader each."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from PIL import Image

from oodlit._lightning import pl
from oodlit.base.errors import DataError, InvalidArgumentError, UnknownNameError
from oodlit.base.known_classes.class_choice import ClassChoice, chosen_indices
from oodlit.base.plan import RunPlan, plan_of
from oodlit.base.roles import Role
from oodlit.base.text.warn import warn
from oodlit.datamodules.batches import Batch, OnError, Transform
from oodlit.datamodules.classes import align_streams, as_class_names
from oodlit.datamodules.decode import Decode, decode_image
from oodlit.datamodules.device.decoder import check_settings
from oodlit.datamodules.generated.unit_test_source import unit_test_stream
from oodlit.datamodules.keys import repeated
from oodlit.datamodules.loader import StreamLoader
from oodlit.datamodules.loading_options import check_loading
from oodlit.datamodules.pictures import NoPictureError, NoPictureWarning, picture
from oodlit.datamodules.pipelines.pipeline_loader import PipelineLoader
from oodlit.datamodules.pipelines.source import PipelineSource
from oodlit.datamodules.stream import Stream, find_samples
from oodlit.datamodules.subsets import with_class_subset
from oodlit.datamodules.thinning import thinned
from oodlit.datamodules.transforms import without_resize

_ORDER = {Role.TRAIN: 0, Role.ID: 1}


def _checked(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    for setting in evaluation:
        UnknownNameError.check("setting in evaluation=", setting, ("aggregates", "full_spectrum", "rule"))
    return dict(evaluation)


def _in_order(streams: Sequence[Stream]) -> list[Stream]:
    return sorted(streams, key=lambda stream: _ORDER.get(stream.role, 2))


class OODDataModule(pl.LightningDataModule):
    """Streams of images for `Trainer.predict`: training images first, then ID, then all others in the given order.

    Args:
        streams: The streams. Their names must differ, and exactly one must have the role ID.
        transform: From a decoded RGB image to the network's input. None (default) = the backbone's transform.
        batch_size: Images per batch and process, at least 1. Default 64.
        num_workers: Worker processes for reading and decoding, per process. Default 0 = no workers.
        on_error: "raise" (default) stops at the first unusable sample; "skip" skips it and lists key and reason in the
            batch (see `StreamLoader`).
        decode: Decoder from the bytes of an image file to a PIL image.
        multiprocessing_context: Start method of the workers; None (default) = the platform's.
        prefetch_factor: Batches that each worker prepares ahead; None (default) = PyTorch's 2.
        class_names: Class names in the order of the network's logits: a list, a file with one name per line, or
            "imagenet". None (default) = those of the training stream, or else of the ID stream. Labels of all streams
            with label names are mapped to this order by name.
        max_images: At most this many images per stream, spread over it, for a trial. None (default) = all.
        any_size: If True, images keep their sizes, and training images need no labels, as for object detectors.
        unit_tests: Images per unit test, generated at the sizes of ID images as an additional stream "unit_tests".
            None (default) = no unit tests.
        decode_on_device: If True, the device of the run decodes, resizes and normalizes JPEGs in batches; workers read
            the files and decode all other formats. Verified against the workers' decoder, see docs/device.md.
        class_subset: Classes that count as known, by index, name or WordNet id; images of the other classes are left
            out, and the remaining ones are numbered 0, 1, .... None (default) = all. Pass the same to `OODModule`.
        dropped_as: Name of an OOD set with the ID images of the other classes. None (default) = no such set.
        evaluation: Settings of the metrics that belong to the data: "aggregates", the data sets of each mean over sets
            by its name, "full_spectrum", the shifted sets that full-spectrum values require, and "rule", the threshold
            rule, which `OODDetection(rule=...)` replaces.

    Raises:
        InvalidArgumentError: Two streams share a name, there is not exactly one ID stream, or `decode_on_device` is
            combined with a custom decoder or with `any_size`.
        DataError: A stream is empty or has an unknown class.

    Example:
        >>> import torch
        >>> from oodlit.datamodules.sources import MemorySource
        >>> from oodlit.datamodules.stream import Sample
        >>> def stream(name, role):
        ...     return Stream(name, role, MemorySource([Sample("0", torch.zeros(3, 2, 2), label=1)]))
        >>> data = OODDataModule([stream("far", Role.OOD), stream("val", Role.ID), stream("train", Role.TRAIN)])
        >>> [s.name for s in data.streams], [len(loader) for loader in data.predict_dataloader()]
        (['train', 'val', 'far'], [1, 1, 1])
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        *,
        transform: Transform | None = None,
        batch_size: int = 64,
        num_workers: int = 0,
        on_error: OnError = "raise",
        decode: Decode = decode_image,
        multiprocessing_context: str | None = None,
        prefetch_factor: int | None = None,
        class_names: str | Path | Sequence[str] | None = None,
        max_images: int | None = None,
        any_size: bool = False,
        unit_tests: int | None = None,
        decode_on_device: bool = False,
        class_subset: ClassChoice = None,
        dropped_as: str | None = None,
        evaluation: Mapping[str, Any] | None = None,
    ) -> None:
        """Check names and roles without reading any image."""
        super().__init__()
        # a rank without samples of a stream takes part in the collectives with empty states
        self.allow_zero_length_dataloader_with_multiple_devices = True
        given: object = streams
        if isinstance(given, Stream):
            raise InvalidArgumentError(f"streams: expected a list of streams, got the stream {given.name!r}")
        check_loading(batch_size, num_workers)
        names = [*(stream.name for stream in streams), *(["unit_tests"] if unit_tests is not None else [])]
        names += [] if dropped_as is None else [dropped_as]
        if twice := repeated(names):
            raise InvalidArgumentError(f"streams: the name {twice[0]!r} occurs twice; stream names must be unique")
        ids = [stream for stream in streams if stream.role is Role.ID]
        if len(ids) != 1:
            found = ", ".join(one.name for one in ids) or "none"
            raise InvalidArgumentError(
                f"streams: expected exactly one stream with role 'id', got {found}; every metric compares other images"
                " with one set of in-distribution images"
            )
        if empty := [stream.name for stream in streams if not len(stream)]:
            raise DataError(f"data set {empty[0]!r} has no samples; add images, or remove the data set")
        if unit_tests is not None:
            streams = [*streams, unit_test_stream(ids[0].source, count=unit_tests, decode=decode)]
        streams, self.class_names = align_streams(streams, as_class_names(class_names))
        self._all_classes = (streams, self.class_names)
        self.class_subset, self.dropped_as = chosen_indices(class_subset, self.class_names), dropped_as
        if dropped_as is not None and not self.class_subset:
            raise InvalidArgumentError(f"dropped_as={dropped_as!r} requires class_subset=..., which drops classes")
        if self.class_subset:
            streams = with_class_subset(streams, self.class_names, self.class_subset, dropped_as)
            self.class_names = tuple(self.class_names[index] for index in self.class_subset) if self.class_names else ()
        self.evaluation = _checked(evaluation or {})
        self.streams: tuple[Stream, ...] = tuple(thinned(stream, max_images) for stream in _in_order(streams))
        self.transform = transform
        self.batch_size, self.num_workers, self.on_error, self.decode = batch_size, num_workers, on_error, decode
        self.multiprocessing_context, self.prefetch_factor = multiprocessing_context, prefetch_factor
        self.any_size, self.decode_on_device = any_size, decode_on_device
        if decode_on_device:
            check_settings(decode, any_size=any_size)

    def transform_for(self, backbone: object) -> Transform | None:
        """The transform of a run with this backbone: the data's own, or the backbone's if the data have none."""
        return getattr(backbone, "transform", None) if self.transform is None else self.transform

    @property
    def active_streams(self) -> tuple[Stream, ...]:
        """Streams with a loader in `predict_dataloader`; the position is Lightning's `dataloader_idx`.

        Training streams are excluded if nothing in the run uses them.
        """
        return tuple(stream for stream in self.planned_streams if stream.name not in self._plan.finished)

    @property
    def planned_streams(self) -> tuple[Stream, ...]:
        """Streams covered by the results, including streams that were read before the run was resumed."""
        return tuple(stream for stream in self.streams if self._plan.use_train or stream.role is not Role.TRAIN)

    @property
    def _plan(self) -> RunPlan:
        """The plan of the current run; outside a run, this transform and all streams."""
        return plan_of(self) or RunPlan(self.transform)

    def with_loading(
        self,
        *,
        batch_size: int | None = None,
        num_workers: int | None = None,
        max_images: int | None = None,
        decode_on_device: bool | None = None,
    ) -> "OODDataModule":
        """Return a copy with other loading options; None keeps the current value. `max_images` makes it a trial."""
        other = copy.copy(self)
        other.batch_size = self.batch_size if batch_size is None else batch_size
        other.num_workers = self.num_workers if num_workers is None else num_workers
        other.decode_on_device = self.decode_on_device if decode_on_device is None else decode_on_device
        check_loading(other.batch_size, other.num_workers)
        if other.decode_on_device:
            check_settings(self.decode, any_size=self.any_size)
        other.streams = tuple(thinned(stream, max_images) for stream in self.streams)
        return other

    def with_all_classes(self) -> "OODDataModule":
        """Return a copy without `class_subset`, `dropped_as`, and `max_images`."""
        other = copy.copy(self)
        streams, other.class_names = self._all_classes
        other.streams, other.class_subset, other.dropped_as = tuple(_in_order(streams)), (), None
        return other

    def stream(self, name: str) -> Stream:
        """The stream with this name.

        Raises:
            InvalidArgumentError: There is none.
        """
        for stream in self.streams:
            if stream.name == name:
                return stream
        raise InvalidArgumentError(f"no stream is called {name!r}; streams: {', '.join(s.name for s in self.streams)}")

    def predict_dataloader(self) -> Sequence[Iterable[Batch]]:
        """One loader per active stream, each with this process's part."""
        rank, world_size = 0, 1
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        loaders = [self._loader(stream, rank, world_size) for stream in self.active_streams]
        return loaders or [iter(())]  # Lightning warns about an empty list

    def _loader(self, stream: Stream, rank: int, world_size: int) -> StreamLoader:
        transform = self._plan.transform
        kind = PipelineLoader if isinstance(stream.source, PipelineSource) else StreamLoader
        return kind(
            stream,
            without_resize(transform) if stream.prepared and transform is not None else transform,
            batch_size=self.batch_size,
            num_workers=self.num_workers,
            on_error=self.on_error,
            decode=self.decode,
            rank=rank,
            world_size=world_size,
            multiprocessing_context=self.multiprocessing_context,
            prefetch_factor=self.prefetch_factor,
            start=self._plan.done.get(stream.name, 0),
            any_size=self.any_size,
            on_request=self._plan.asked,
            decode_on=self._device if self.decode_on_device else None,
        )

    @property
    def _device(self) -> torch.device:
        """Device of the run; outside a run, the CPU."""
        return torch.device("cpu") if self.trainer is None else self.trainer.strategy.root_device

    def read_images(self, keys: Iterable[str]) -> dict[str, Image.Image]:
        """Read images by `dataset/key`, decoded to RGB but not transformed, for thumbnails.

        Images that cannot be shown are left out, with one warning for all.

        Raises:
            DataError: A key is unknown.

        Warns:
            NoPictureWarning: Images are left out; the message has their number, the first key and its reason.
        """
        wanted: dict[str, set[str]] = {}
        for full in keys:
            name, _, key = full.partition("/")
            wanted.setdefault(name, set()).add(key)
        images: dict[str, Image.Image] = {}
        reasons: dict[str, str] = {}
        for name, inner in wanted.items():
            stream = self.stream(name)
            for key, sample in find_samples(stream.source, inner).items():
                try:
                    images[stream.full_key(key)] = picture(sample, self.decode)
                except NoPictureError as error:
                    reasons[stream.full_key(key)] = str(error)
        if reasons:
            first, reason = next(iter(reasons.items()))
            number = f"{len(reasons)} of {len(reasons) + len(images)} images"
            warn(f"{number} cannot be shown as thumbnails (first: {first!r}, {reason})", NoPictureWarning)
        return images
