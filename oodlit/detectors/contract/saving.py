"""Save and load fitted detectors as safetensors and JSON, without pickle.

A folder contains `detectors.json` (version, settings, origin of the fit) and `detectors.safetensors` (the buffers).
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor

from oodlit._version import __version__
from oodlit.base.atomic import write_bytes
from oodlit.base.errors import FingerprintError, InvalidArgumentError, NotFittedError, OodlitError
from oodlit.base.fingerprint import check_same
from oodlit.base.json_files import loads
from oodlit.detectors.contract.class_paths import from_config, public_path
from oodlit.detectors.contract.detector import Detector

FORMAT = 3
"""Version of the file format; increased when older files can no longer be read."""
DESCRIPTION = "detectors.json"


@dataclass(frozen=True)
class FitOrigin:
    """The backbone and data that a fit belongs to.

    Args:
        fingerprint: Fingerprint of the backbone's weights, head and transform; see `oodlit.base.fingerprint`.
        width: Number of features.
        num_classes: Number of logits.
        num_train: Number of training images.
    """

    fingerprint: str = ""
    width: int = 0
    num_classes: int = 0
    num_train: int = 0

    def check(self, other: "FitOrigin | Fingerprinted", *, source: str = "the saved fit") -> None:
        """Refuse a backbone that the fit does not belong to.

        Args:
            other: The origin of another fit, or an `OODModule`.
            source: Name of the fit in the message.

        Raises:
            FingerprintError: Fingerprint, width or number of classes differ.

        Example:
            >>> FitOrigin("weights=a transform=b").check(FitOrigin("weights=a"))
        """
        for name, words in (("width", "features"), ("num_classes", "classes")):
            mine, theirs = getattr(self, name), getattr(other, name, 0)
            if mine and theirs and mine != theirs:
                raise FingerprintError(
                    f"{source} belongs to another backbone with {mine} {words}, but this backbone has {theirs}; fit"
                    " again, or load the backbone of the fit"
                )
        check_same(self.fingerprint, other.fingerprint, source=source)


@runtime_checkable
class Fingerprinted(Protocol):
    """Anything with a fingerprint, such as an `OODModule`."""

    @property
    def fingerprint(self) -> str:
        """Text that identifies the backbone."""


def save(detectors: Mapping[str, Detector], directory: str | Path, origin: FitOrigin | None = None) -> None:
    """Write fitted detectors to a folder, either completely or not at all.

    Args:
        detectors: Detectors by name.
        directory: Created if missing; its two files are replaced.
        origin: Origin of the fit, checked when the detectors are used again.

    Raises:
        NotFittedError: A detector is not fitted.

    Example:
        >>> import tempfile
        >>> from oodlit.detectors import Energy
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save({"energy": Energy(temperature=2.0)}, folder)
        ...     load(folder)[0]
        {'energy': Energy(temperature=2.0)}
    """
    if unfitted := [name for name, detector in detectors.items() if not detector.is_fitted]:
        raise NotFittedError(f"cannot save unfitted detectors: {', '.join(unfitted)}; fit them first")
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{i}.{key}": value.detach().to("cpu", copy=True).contiguous()
        for i, detector in enumerate(detectors.values())
        for key, value in detector.named_buffers()
    }
    description = {
        "format": FORMAT,
        "oodlit": __version__,
        "origin": asdict(origin or FitOrigin()),
        "checksum": _checksum(tensors),
        "detectors": [
            {
                "name": name,
                "notes": d.notes,
                "shapes": dict(d.fitted_sizes),
                "buffers": sorted(n for n, _ in d.named_buffers()),
                **detector_to_config(d),
            }
            for name, d in detectors.items()
        ],
    }
    # The description is also stored in the tensor file, so that mismatched files are detected on loading.
    text = json.dumps(description, indent=1, sort_keys=True)
    write_bytes(folder / "detectors.safetensors", to_bytes(tensors, metadata={"description": text}))
    write_bytes(folder / DESCRIPTION, text.encode())


def fit_digest(fit: Path | Mapping[str, Detector]) -> str:
    """Identify a fit: a folder that `save` wrote, or fitted detectors in memory.

    Args:
        fit: The folder, whose description has the checksum of the tensors, or detectors by name.

    Returns:
        A hexadecimal text; folders and memory have different ones.
    """
    if isinstance(fit, Path):
        return hashlib.blake2b((fit / DESCRIPTION).read_bytes(), digest_size=16).hexdigest()
    return _checksum({f"{n}.{key}": value.detach().cpu() for n, d in fit.items() for key, value in d.named_buffers()})


def load(directory: str | Path) -> tuple[dict[str, Detector], FitOrigin]:
    """Read detectors written by `save`.

    Returns:
        Detectors by name, and the origin of the fit.

    Raises:
        InvalidArgumentError: A file is missing, damaged, in another format, or the two files do not match.
    """
    folder = Path(directory)
    text_file, tensor_file = folder / DESCRIPTION, folder / "detectors.safetensors"
    for file in (text_file, tensor_file):
        if not file.is_file():
            raise InvalidArgumentError(f"{folder} contains no saved detectors: {file.name} is missing")
    text = text_file.read_text(encoding="utf-8")
    try:
        with safe_open(tensor_file, framework="pt") as opened:
            written = (opened.metadata() or {}).get("description")
        if written != text:
            raise _unusable(folder, f"{text_file.name} and {tensor_file.name} belong to different fits")
        description = loads(text)
        if description["format"] != FORMAT:
            found = f"{description['format']} written by oodlit {description['oodlit']}"
            raise _unusable(folder, f"expected format {FORMAT}, got {found}")
        origin = FitOrigin(**description["origin"])
        tensors = load_file(tensor_file)
        if description["checksum"] != _checksum(tensors):
            raise _unusable(folder, "the saved detectors are damaged (the tensors do not match their checksum)")
        return _detectors(description["detectors"], tensors, origin.fingerprint), origin
    except OodlitError:
        raise
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unusable(folder, f"the saved detectors are damaged ({type(error).__name__}: {error})") from error


def _unusable(folder: Path, problem: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{folder}: {problem}; fit again")


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    """Hash the names and bytes of all tensors, which reveals flipped bits in the file."""
    digest = hashlib.blake2b(digest_size=16)
    for name, value in sorted(tensors.items()):
        digest.update(name.encode())
        if value.numel():
            digest.update(value.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _detectors(
    entries: Sequence[Mapping[str, Any]], tensors: Mapping[str, Tensor], fitted_on: str
) -> dict[str, Detector]:
    """Build detectors by name from their descriptions and from buffers named `number.path`."""
    detectors: dict[str, Detector] = {}
    for i, entry in enumerate(entries):
        detector = from_config(entry, Detector)
        for key, value in tensors.items():
            number, _, path = key.partition(".")
            if int(number) == i:
                owner, _, buffer = path.rpartition(".")
                # Copied: tensors in the file are not aligned, which can change the rounding of products.
                detector.get_submodule(owner).register_buffer(buffer, value.clone())
        if missing := sorted(set(entry.get("buffers", ())) - {n for n, _ in detector.named_buffers()}):
            raise KeyError(f"{entry['name']}: missing tensor {missing[0]}")
        detector.restore(entry.get("shapes", {}), entry.get("notes", ()), fitted_on)
        detectors[entry["name"]] = detector
    _share(detectors.values())
    return detectors


def _share(detectors: Iterable[Detector]) -> None:
    """Let equal detectors and parts share one fit, as after a run, so that a batch is scored once for all of them."""
    known: dict[str, Detector] = {}
    for part in (part for detector in detectors for part in detector.modules() if isinstance(part, Detector)):
        twin = known.setdefault(repr(detector_to_config(part)), part)
        own, others = dict(part.named_buffers()), dict(twin.named_buffers())
        if part is not twin and own.keys() == others.keys() and all(_same(own[n], others[n]) for n in own):
            part.adopt(twin)


def _same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


def detector_to_config(detector: Detector) -> dict[str, Any]:
    """Return class path and settings of a detector as plain JSON values.

    Example:
        >>> from oodlit.detectors import Energy
        >>> detector_to_config(Energy())
        {'class_path': 'oodlit.detectors.Energy', 'init_args': {'temperature': 1.0}}
    """
    settings = {name: _plain(value) for name, value in detector.settings.items()}
    return {"class_path": public_path(type(detector)), "init_args": settings}


def _plain(value: Any) -> Any:
    """Convert a setting that is a detector, or a list of them, to plain values."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return detector_to_config(value) if isinstance(value, Detector) else value
