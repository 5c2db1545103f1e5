"""Make module and data of a run from existing arrays of features and logits."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.roles import Role
from oodlit.datamodules.classes import as_class_names
from oodlit.recorded.agreement import check_sets
from oodlit.recorded.array_files import SYNONYMS
from oodlit.recorded.arrays import Given, GivenHead, head_of, stream_of
from oodlit.recorded.data import RecordedData
from oodlit.recorded.module import RecordedModule


def recorded_parts(
    *,
    id: Given,
    ood: Mapping[str, Given] | Given | None = None,
    train: Given | None = None,
    shift: Mapping[str, Given] | None = None,
    unit_tests: Mapping[str, Given] | None = None,
    head: GivenHead | None = None,
    class_names: str | Path | Sequence[str] | None = None,
    name: str = "recorded outputs",
    batch_size: int = 4096,
) -> tuple[RecordedModule, RecordedData]:
    """Make module and data for `trainer.predict` from the arguments of `evaluate_arrays`."""
    names = as_class_names(class_names)
    sets: list[tuple[str, Role, Given]] = [("id", Role.ID, id)]
    sets += [] if train is None else [("train", Role.TRAIN, train)]
    for role, many in ((Role.OOD, ood), (Role.SHIFT, shift), (Role.UNIT_TEST, unit_tests)):
        sets += [(key, role, given) for key, given in _by_name(str(role), many).items()]
    streams = [stream_of(key, role, given, names) for key, role, given in sets]
    data = RecordedData(streams, batch_size=batch_size, class_names=names or None)
    layer = None if head is None else head_of(head)
    make = partial(RecordedModule, width=data.width, num_classes=data.num_classes, name=name, is_checked=True)
    module = make(head=layer)  # checks the shapes
    if problem := check_sets(streams, layer):
        module = make(head_problem=problem)
    return module, data


def _by_name(role: str, given: Mapping[str, Given] | Given | None) -> dict[str, Given]:
    """Sets by name; a single set gets the name of its role."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or {"logits", "features", *SYNONYMS} & given.keys():
        return {role: given}
    if not given:
        raise InvalidArgumentError(f"{role}: expected sets by name, got an empty mapping")
    return dict(given)
