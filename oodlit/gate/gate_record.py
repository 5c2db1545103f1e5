"""The record of a gate: `gate.json`."""

from collections.abc import Mapping
from typing import Any

import msgspec
import yaml  # type: ignore[import-untyped]
from msgspec import structs

from oodlit._version import __version__
from oodlit.base.errors import DataError
from oodlit.base.yaml_files import load_yaml
from oodlit.gate.threshold import Threshold

FORMAT = 1
_CONFIG = "the entry config of run.json or gate.json"


class GateBackbone(msgspec.Struct, frozen=True):
    """The network of a gate, from the `ClassifierRecord` of its run, and the configuration of the run.

    Args:
        name: Name of the network.
        fingerprint: Fingerprint of weights, head and transform; see `oodlit.base.fingerprint`.
        width: Number of features.
        num_classes: Number of logits; 0 = the network returns none.
        transform: The transform as text.
        transform_recipe: How to rebuild the transform; None if this is unknown.
        arguments: Arguments of `OODModule`.
        input_shape: Shape of an image after the transform.
        config: The configuration of the command line, in YAML; None for a run from Python. A saved gate has its entries
            `seed`, `backbone` and `data.init_args.transform` only.
        one_shape: Whether all images of the run had the same shape after the transform.
    """

    name: str
    fingerprint: str
    width: int
    num_classes: int
    transform: str
    transform_recipe: Any
    arguments: dict[str, Any]
    input_shape: list[int]
    config: str | None = None
    one_shape: bool = False

    @property
    def configuration(self) -> dict[str, Any]:
        """The configuration of the command line; empty for a run from Python.

        Raises:
            DataError: It is damaged.
        """
        try:
            found = load_yaml(self.config or "{}")
        except yaml.YAMLError as error:
            raise DataError(f"{_CONFIG} is not valid YAML ({' '.join(str(error).split())}); restore it") from error
        if not isinstance(found, dict):
            raise DataError(f"{_CONFIG}: expected a mapping of options, got {type(found).__name__}; restore it")
        return found

    @property
    def config_of_network(self) -> str | None:
        """The part of the configuration that a gate reads: seed, network and transform, without data and loggers."""
        known = self.configuration
        kept: dict[str, Any] = {name: known[name] for name in ("seed", "backbone") if name in known}
        transform = recorded_transform(known)
        kept |= {} if transform is None else {"data": {"init_args": {"transform": transform}}}
        return str(yaml.safe_dump(kept, sort_keys=False)) if kept else None


def recorded_transform(configuration: Mapping[str, Any]) -> Any:
    """The transform of the data in a configuration; None if there is none."""
    data = configuration.get("data")
    arguments = data.get("init_args") if isinstance(data, Mapping) else None
    return arguments.get("transform") if isinstance(arguments, Mapping) else None


class GateRecord(msgspec.Struct, frozen=True):
    """The settings of a gate besides its network and detector: `gate.json`.

    Args:
        detector: Name of the detector.
        threshold: The threshold of the score.
        class_names: Names of the classes by index; empty if the run does not name every class of the network.
        backbone: The network.
        precision: Lightning's name of the precision of the run.
        decoder: The decoder of the run, if it was not `decode_image`.
        fit: Digest of the saved fit; empty in older files.
        calibration: Digest of the saved calibration scores; empty without them and in older files.
        format: Version of the file format.
        oodlit: Version of oodlit that wrote the file.
    """

    detector: str
    threshold: Threshold
    class_names: tuple[str, ...]
    backbone: GateBackbone
    precision: str
    decoder: str = ""
    fit: str = ""
    calibration: str = ""
    format: int = FORMAT
    oodlit: str = __version__

    def made_by(self, path: str) -> "GateRecord":
        """Return the record with the dotted path of a class or function that builds the network."""
        arguments = {**self.backbone.arguments, "backbone": path}
        return structs.replace(self, backbone=structs.replace(self.backbone, arguments=arguments))
