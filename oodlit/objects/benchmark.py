"""Benchmarks of object detectors: images with known classes, and sets with objects of unknown classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torchvision.transforms import ToTensor
from typing_extensions import Unpack

from oodlit.base.checks import check_choice
from oodlit.base.errors import InvalidArgumentError
from oodlit.base.roles import Role
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.loading_options import ReadingOptions
from oodlit.datamodules.stream import Stream
from oodlit.objects.files.annotations import Annotations, read_annotations
from oodlit.objects.files.orientation import Orientation
from oodlit.objects.files.picture_source import PictureSource, find_folder
from oodlit.results import Finding

BATCH_SIZE = 4
"""Default number of images per batch: they keep their sizes, and detection networks take more memory."""
FMIYC = {
    "voc": {
        "near_coco": "COCO/annotations/near_coco_wrt_voc.json",
        "far_coco": "COCO/annotations/far_coco_wrt_voc.json",
        "near_oi": "OpenImages/COCO-Format/near_oi_wrt_voc.json",
        "far_oi": "OpenImages/COCO-Format/far_oi_wrt_voc.json",
    },
    "bdd": {
        "farther_coco": "COCO/annotations/farther_coco_wrt_bdd.json",
        "farther_oi": "OpenImages/COCO-Format/farther_oi_wrt_bdd.json",
    },
}
"""Annotation files of FindMeIfYouCan by ID data set and set."""
KNOWN = {
    "voc": ("voc0712_train_all.json", "val_coco_format.json"),
    "bdd": ("train_bdd_converted.json", "val_bdd_converted.json"),
}
"""Annotation files of training and test images of the ID data sets, as converted by the benchmark's authors."""


@dataclass(frozen=True)
class CocoSet:
    """A data set in COCO's format.

    Args:
        name: Name in keys, tables and loggers.
        annotations: The JSON file.
        images: Folder of the pictures; None = detected automatically at or below the folder of the file.
    """

    name: str
    annotations: str | Path
    images: str | Path | None = None


class ObjectBenchmark(OODDataModule):
    """Images with annotated objects for `Trainer.predict`: training and ID images, and OOD sets with unknown objects.

    Pictures keep their sizes. Every annotated box of an OOD set is an unknown object; classes with the name of a known
    class are reported as a finding.

    Args:
        known: ID images that the detector was not trained on.
        unknown: OOD sets.
        train: Training images to fit OOD detectors on; None = only detectors without a fit.
        class_names: Names of the ID classes in the order of the detector's logits. None = the order of the categories
            of `train`, or of `known` without it.
        repair: Whether to crop boxes at the border of their image, and to drop those without area or marked `ignore` or
            `difficult`. False (default) = they are an error.
        orientation: Whether boxes refer to pictures as they are "stored" or as they are "displayed" by the orientation
            in their EXIF data. None (default) = the one with the width and height of the annotations; a picture where
            both have them, such as one turned by 180 degrees, is an error.
        reading: `batch_size` (default 4), `num_workers`, `on_error`, `multiprocessing_context`, `prefetch_factor` and
            `max_images` of `OODDataModule`.

    Attributes:
        annotations: The objects by name of the set.
        findings: Facts that make the numbers doubtful.

    Raises:
        DataError: A file is not valid, or pictures are missing.
        InvalidArgumentError: Two sets share a name, or the orientation is unknown.
    """

    def __init__(
        self,
        known: CocoSet,
        unknown: Sequence[CocoSet],
        train: CocoSet | None = None,
        *,
        class_names: Sequence[str] | None = None,
        repair: bool = False,
        orientation: Orientation | None = None,
        **reading: Unpack[ReadingOptions],
    ) -> None:
        check_choice("ObjectBenchmark", "orientation", orientation, ("stored", "displayed", None))
        names = None if class_names is None else tuple(class_names)
        roles = [] if train is None else [(train, Role.TRAIN)]
        roles += [(known, Role.ID), *((one, Role.OOD) for one in unknown)]
        self.annotations: dict[str, Annotations] = {}
        streams = []
        for one, role in roles:
            is_known = role is not Role.OOD
            found = read_annotations(one.annotations, one.name, class_names=names if is_known else None, repair=repair)
            names = found.class_names if names is None else names  # the first set is one of known classes
            folder = Path(one.annotations).parent if one.images is None else Path(one.images)
            source = PictureSource(found, find_folder(folder, found), orientation)
            streams.append(Stream(one.name, role, source, names if is_known else ()))
            self.annotations[one.name] = found
        names = names or ()
        reading.setdefault("batch_size", BATCH_SIZE)
        super().__init__(streams, transform=ToTensor(), class_names=names, any_size=True, **reading)
        self.findings = tuple(_findings(self.annotations, [one.name for one in unknown], names))

    @classmethod
    def fmiyc(
        cls,
        root: str | Path,
        known: str = "voc",
        *,
        known_root: str | Path,
        sets: Sequence[str] | None = None,
        train: bool = True,
        **options: object,
    ) -> "ObjectBenchmark":
        """Create FindMeIfYouCan for detectors of PASCAL VOC (20 classes) or of BDD100k (10 classes).

        Args:
            root: Folder of the published annotations and their pictures, with the folders `COCO` and `OpenImages`.
            known: The ID data set: "voc" or "bdd".
            known_root: Folder with its annotations in COCO's format and its pictures.
            sets: Any of near_coco, far_coco, near_oi, far_oi (VOC), farther_coco, farther_oi (BDD); None = all.
            train: Whether to include the training images.
            options: Further arguments of `ObjectBenchmark`.

        Raises:
            InvalidArgumentError: A set does not belong to this ID data set.
            DataError: A file is missing.

        References:
            Montoya Obeso et al.: FindMeIfYouCan: Bringing Open Set Metrics to near, far and farther Out-of-Distribution
            Object Detection, 2025. https://huggingface.co/datasets/CEAai/FindMeIfYouCan
        """
        check_choice("ObjectBenchmark.fmiyc", "known", known, FMIYC)
        files, (train_file, test_file) = FMIYC[known], KNOWN[known]
        if odd := [name for name in sets or () if name not in files]:
            raise InvalidArgumentError(
                f"ObjectBenchmark.fmiyc: with known={known!r}, expected sets from {', '.join(files)}; got {odd[0]!r}"
            )
        base, known_base = Path(root), Path(known_root)
        unknown = [
            CocoSet(name, base / file, base / file.partition("/")[0])
            for name, file in files.items()
            if sets is None or name in sets
        ]
        test = CocoSet(f"{known}_test", known_base / test_file, known_base)
        training = CocoSet(f"{known}_train", known_base / train_file, known_base) if train else None
        return cls(test, unknown, training, **options)  # type: ignore[arg-type]


def _findings(annotations: dict[str, Annotations], unknown: Sequence[str], names: Sequence[str]) -> list[Finding]:
    found = []
    for name in unknown:
        part = annotations[name]
        if same := part.classes_like(names):
            number = sum(part.class_names[label] in same for label in part.labels.tolist())
            text = (
                f"data set {name!r} has {number} objects of classes that the detector knows ({', '.join(same)}). They"
                " count as unknown objects, so recognizing them counts as an error"
            )
            found.append(Finding("known_classes", text))
    return found
