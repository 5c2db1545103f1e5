"""Refuse detectors that write to tensors which several detectors share."""

from collections.abc import Iterator
from contextlib import contextmanager

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.outputs import Head, Outputs, version_of
from oodlit.detectors.statistics import Statistics


@contextmanager
def refuse_writes_in_fit(owner: object, statistics: Statistics, head: Head | None) -> Iterator[None]:
    """Refuse a fit that writes to the statistics or to the head.

    Raises:
        InvalidArgumentError: `owner` or an earlier detector wrote to them.
    """
    of_head = {} if head is None else {"head.weight": head.weight, "head.bias": head.offset}
    before = {name: version_of(tensor) for name, tensor in of_head.items()}
    statistics.check_unchanged()
    yield
    changed = [name for name, tensor in of_head.items() if version_of(tensor) != before[name]]
    changed += statistics.changed()
    if changed:
        raise InvalidArgumentError(
            f"{owner!r} wrote to tensors that other detectors are fitted on: {', '.join(changed)}; use out-of-place"
            " operations, or copy the tensors first"
        )


@contextmanager
def refuse_writes_in_score(owner: object, outputs: Outputs) -> Iterator[None]:
    """Refuse a score that writes to the outputs, or outputs that were already written to.

    Raises:
        InvalidArgumentError: `owner`, an earlier detector or other code wrote to them.
    """
    if earlier := outputs.changed_fields():
        raise InvalidArgumentError(
            f"{owner!r}: an earlier detector or other code wrote to fields of the outputs: {', '.join(earlier)};"
            " compute the outputs again, and copy tensors before changing them"
        )
    cause: RuntimeError | None = None
    try:
        yield
    except RuntimeError as error:
        if "Inplace update to inference tensor" not in str(error):
            raise
        cause = error  # torch has already written at this point
        outputs.mark_written()
    if changed := outputs.changed():
        raise InvalidArgumentError(
            f"{owner!r} wrote to tensors that it shares with other detectors: {', '.join(changed)}; use"
            " out-of-place operations, or copy the tensors first"
        ) from cause
