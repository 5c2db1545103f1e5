"""The data of one run: all its streams, one predict loader each."""

import copy
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
import torch.distributed
from PIL import Image

from oodlit._lightning import pl
from oodlit.base.plan import RunPlan, plan_of
from oodlit.datamodules.batches import Batch, OnError, Transform
from oodlit.datamodules.classes import align_streams, as_class_names
from oodlit.datamodules.decode import Decode, decode_image
from oodlit.datamodules.device.decoder import check_settings
from oodlit.datamodules.generated.unit_test_source import unit_test_stream
from oodlit.datamodules.loader import StreamLoader
from oodlit.datamodules.pictures import NoPictureError, NoPictureWarning, picture
from oodlit.datamodules.pipelines.loader import PipelineLoader
from oodlit.datamodules.pipelines.source import PipelineSource
from oodlit.datamodules.stream import Stream, find_samples
from oodlit.datamodules.thinning import thinned
from oodlit.datamodules.transforms import without_resize
from oodlit.errors import DataError, InvalidArgumentError
from oodlit.roles import Role

_ORDER = {Role.TRAIN: 0, Role.ID: 1}


class OODDataModule(pl.LightningDataModule):
    """Streams of images for `Trainer.predict`: training images first, then ID, then all others in the order given.

    Args:
        streams: The streams; names differ, exactly one has the role ID.
        transform: From a decoded RGB image to the network's input. None (default): a run takes the backbone's own.
        batch_size: Images per batch and process, at least 1. Default 64.
        num_workers: Worker processes per process for reading and decoding. Default 0 = in the process itself.
        on_error: "raise" (default) stops at the first unusable sample; "skip" goes on and lists key and reason in the
            batch (see `StreamLoader`).
        decode: From the bytes of an image file to a PIL image.
        multiprocessing_context: Start method of the workers; None (default) = the platform's.
        prefetch_factor: Batches that each worker prepares ahead; None (default) = PyTorch's 2.
        class_names: Names of the classes in the order of the network's logits: a list, a file with a name a line, or
            "imagenet". None (default) = those of the training stream, or of the ID stream where there is none. Labels
            of all streams that know the names of theirs are brought to this order by name.
        max_images: At most so many images of every stream, spread over it: a trial of a run. None (default) = all.
        any_size: True: every image keeps its size, and training images need no label, as for object detectors.
        unit_tests: Images of each unit test, drawn at the sizes of ID images as a further stream "unit_tests". None
            (default) = no such stream.
        decode_on_device: True: the device of the run decodes, resizes and normalises JPEGs in batches; workers read the
            files, and decode all other formats. Verified against the exact reading, see docs/device.md.

    Raises:
        InvalidArgumentError: Two streams share a name, the number of ID streams is not one, or `decode_on_device` goes
            with another decoder, or with images that keep their sizes.
        DataError: A stream is empty, or has a class that the order of the classes does not know.

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
    ) -> None:
        """Check names and roles; no data is read."""
        super().__init__()
        # A rank without samples of a stream is legal: it takes part in the collectives with empty states.
        self.allow_zero_length_dataloader_with_multiple_devices = True
        names = [*(stream.name for stream in streams), *(["unit_tests"] if unit_tests is not None else [])]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidArgumentError(f"streams: the name {twice[0]!r} is used more than once; names identify results")
        ids = [stream.name for stream in streams if stream.role is Role.ID]
        if len(ids) != 1:
            raise InvalidArgumentError(
                f"streams: {len(ids)} with role ID ({', '.join(ids) or 'none'}); exactly one is needed,"
                " the positive class of every metric"
            )
        if empty := [stream.name for stream in streams if not len(stream)]:
            raise DataError(f"stream {empty[0]!r} holds no samples; a set without images is left out, not scored")
        if unit_tests is not None:
            inside = next(stream.source for stream in streams if stream.role is Role.ID)
            streams = [*streams, unit_test_stream(inside, count=unit_tests, decode=decode)]
        streams, self._class_names = align_streams(streams, as_class_names(class_names))
        in_order = sorted(streams, key=lambda stream: _ORDER.get(stream.role, 2))
        self.streams: tuple[Stream, ...] = tuple(thinned(stream, max_images) for stream in in_order)
        self.transform = transform
        self.batch_size, self.num_workers, self.on_error, self.decode = batch_size, num_workers, on_error, decode
        self.multiprocessing_context, self.prefetch_factor = multiprocessing_context, prefetch_factor
        self.any_size, self.decode_on_device = any_size, decode_on_device
        if decode_on_device:
            check_settings(decode, any_size=any_size)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the labels by index, to be compared with the network's logits; () if no stream knows them."""
        return self._class_names

    def transform_for(self, backbone: object) -> Transform | None:
        """The transform of a run with this backbone: the data's own, or the backbone's if the data have none."""
        return getattr(backbone, "transform", None) if self.transform is None else self.transform

    @property
    def active_streams(self) -> tuple[Stream, ...]:
        """What `predict_dataloader` gives; the position is Lightning's `dataloader_idx`.

        The training streams are left out of a run in which nothing needs them.
        """
        return tuple(stream for stream in self.planned_streams if stream.name not in self._plan.finished)

    @property
    def planned_streams(self) -> tuple[Stream, ...]:
        """What the results of the run are of; some may have been read by an earlier run that this one goes on with."""
        use_train = self._plan.use_train
        return tuple(stream for stream in self.streams if use_train or stream.role is not Role.TRAIN)

    @property
    def _plan(self) -> RunPlan:
        """The choices of the run that is going on; outside of one, the own transform and all streams."""
        return plan_of(self) or RunPlan(self.transform)

    def with_loading(
        self,
        *,
        batch_size: int | None = None,
        num_workers: int | None = None,
        max_images: int | None = None,
        decode_on_device: bool | None = None,
    ) -> "OODDataModule":
        """The same data, loaded otherwise; None keeps what is set here. `max_images` makes a trial of it."""
        other = copy.copy(self)
        other.batch_size = self.batch_size if batch_size is None else batch_size
        other.num_workers = self.num_workers if num_workers is None else num_workers
        other.decode_on_device = self.decode_on_device if decode_on_device is None else decode_on_device
        if other.decode_on_device:
            check_settings(self.decode, any_size=self.any_size)
        other.streams = tuple(thinned(stream, max_images) for stream in self.streams)
        return other

    def stream(self, name: str) -> Stream:
        """The stream of this name.

        Raises:
            InvalidArgumentError: There is none.
        """
        for stream in self.streams:
            if stream.name == name:
                return stream
        raise InvalidArgumentError(f"no stream {name!r}; there are {', '.join(s.name for s in self.streams)}")

    def predict_dataloader(self) -> Sequence[Iterable[Batch]]:
        """One loader per active stream, each with this process's share."""
        rank, world_size = 0, 1
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        loaders = [self._loader(stream, rank, world_size) for stream in self.active_streams]
        return loaders or [iter(())]  # Lightning warns of a list without loaders

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
            asked=self._plan.asked,
            decode_on=self._device if self.decode_on_device else None,
        )

    @property
    def _device(self) -> torch.device:
        """Where the run computes; outside of one, the CPU."""
        return torch.device("cpu") if self.trainer is None else self.trainer.strategy.root_device

    def read_images(self, keys: Iterable[str]) -> dict[str, Image.Image]:
        """Images by `dataset/key`, decoded to RGB but not transformed; for thumbnails.

        An image that cannot be shown is left out, with one warning for all.

        Raises:
            DataError: A key is unknown.

        Warns:
            NoPictureWarning: Images are left out; the number, the first key and its reason are given.
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
            warnings.warn(
                f"{len(reasons)} of {len(reasons) + len(images)} images cannot be shown, first {first!r}: {reason}",
                NoPictureWarning,
                stacklevel=2,
            )
        return images
