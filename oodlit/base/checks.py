"""Check inputs of detectors and statistics: finite values, expected widths, valid settings."""

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from numbers import Real
from types import MappingProxyType

import torch
from torch import Tensor, nn

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.outputs import Head, Model, Outputs, version_of

WITHOUT_FLOAT64 = frozenset({"mps"})
"""Types of devices without float64."""
LARGEST_SEED = 2**32 - 1
LARGEST = 1e100
"""Largest float64 value that is scored: sums of squares of larger values overflow. Every float32 value is smaller."""
_CHECKED = ("logits", "features", "images")


def check_finite(
    owner: object, outputs: Outputs, needs: Iterable[str], finite_proxy: Mapping[str, Tensor] = MappingProxyType({})
) -> None:
    """Refuse a batch with a field that cannot be scored; each field is checked once per batch.

    Fields must not contain NaN, infinities or values beyond `LARGEST`, which some formulas turn into NaN or infinities.
    A logit far below zero, down to minus infinity, denotes a masked class and is allowed beside others.

    Args:
        owner: Named in the error.
        outputs: A batch.
        needs: Fields to check.
        finite_proxy: Smaller tensors by field, such as sums, that are computed anyway and only finite if the field is.
            Checked instead of a field in float32.

    Raises:
        InvalidArgumentError: A field contains such values; the message names the first keys or rows.
    """
    needs = frozenset(needs)
    fields = {name: value for name in _CHECKED if name in needs and (value := getattr(outputs, name)) is not None}
    if "hidden" in needs:
        fields |= {f"hidden[{name!r}]": value for name, value in (outputs.hidden or {}).items()}
    for name, value in fields.items():
        # The largest logits are required anyway; they are NaN or infinite if a logit is.
        looked_at = outputs.max_logits if name == "logits" else value
        if outputs.memo(("finite", name), partial(_all_can_be_scored, looked_at, finite_proxy.get(name, looked_at))):
            continue
        bad = ~_can_be_scored(looked_at).reshape(len(outputs), -1).all(dim=1)
        rows, found = bad.nonzero().flatten().tolist(), looked_at[bad]
        kind = "NaN" if found.isnan().any() else "infinite values"
        way_out = "check these images, and the weights and precision of the backbone"
        if found.isfinite().all():
            kind, way_out = f"values beyond {LARGEST:g}", f"scale the values down, or {way_out}"
        raise InvalidArgumentError(
            f"{owner!r}: found {kind} in {name} of {len(rows)} of {len(outputs)} images ({name_images(outputs, rows)});"
            f" {way_out}"
        )


def _can_be_scored(value: Tensor) -> Tensor:
    return value.abs() <= LARGEST if value.dtype == torch.float64 else value.isfinite()


def _all_can_be_scored(value: Tensor, finite_proxy: Tensor) -> bool:
    if value.dtype != torch.float64 or not value.numel():
        return all_finite(finite_proxy)
    low, high = value.aminmax()  # one pass, without a tensor as large as the field
    return check_usual((-low <= LARGEST) & (high <= LARGEST))


def name_images(outputs: Outputs, rows: Sequence[int]) -> str:
    """Name the first three images of `rows` by their keys, or by their positions in the batch if there are none.

    Example:
        >>> name_images(Outputs(torch.ones(9, 2)), [1, 4, 5, 8])
        'first rows: 1, 4, 5'
    """
    if outputs.keys is None:
        return f"first rows: {', '.join(map(str, rows[:3]))}"
    return f"first: {', '.join(outputs.keys[i] for i in rows[:3])}"


def sizes_of(outputs: Outputs, needs: Iterable[str]) -> dict[str, int]:
    """Return the numbers of logits and of features per image, without fields that are not in `needs` or missing.

    Example:
        >>> sizes_of(Outputs(torch.ones(2, 3), torch.ones(2, 5)), {"features"})
        {'features': 5}
    """
    fields = {name: getattr(outputs, name) for name in ("logits", "features") if name in needs}
    return {name: value.shape[1] for name, value in fields.items() if value is not None}


def check_outputs(owner: object, outputs: object) -> None:
    """Refuse to score anything but `Outputs`.

    Raises:
        InvalidArgumentError: It is something else, such as a tensor.
    """
    if not isinstance(outputs, Outputs):
        raise InvalidArgumentError(
            f"{owner!r}: expected an Outputs object, got {type(outputs).__name__}; pass Outputs(logits, features)"
        )


def check_shapes(owner: object, found: Mapping[str, int], known: Mapping[str, int], what: str, source: str) -> None:
    """Refuse numbers of logits and features that differ from known ones.

    Raises:
        InvalidArgumentError: A number differs.
    """
    for name in found.keys() & known.keys():
        if found[name] != known[name]:
            raise InvalidArgumentError(f"{owner!r}: {what} {found[name]} {name} per image, but {source} {known[name]}")


def check_same_shape(owner: object, own: object, other: object) -> None:
    """Refuse to merge statistics that differ in shape.

    Raises:
        InvalidArgumentError: The shapes differ.
    """
    if own != other:
        raise InvalidArgumentError(
            f"{owner!r}: cannot merge statistics of shapes {own} and {other}; expected the same backbone and settings"
        )


def check_head(owner: object, head: Head) -> None:
    """Refuse a head that is not finite; a bias of minus infinity denotes a masked class and is allowed.

    Raises:
        InvalidArgumentError: A weight or a bias is NaN or infinite.
    """
    unmasked = head.offset[head.offset != -float("inf")]
    if not (all_finite(head.weight) and all_finite(unmasked)):
        raise InvalidArgumentError(f"{owner!r}: the head contains NaN or infinite values; check its weights")


def check_ints(owner: str, *, at_least: int = 1, optional: bool = False, **settings: object) -> None:
    """Refuse settings that are not integers or are too small; None is allowed if `optional`.

    Raises:
        InvalidArgumentError: A setting is not an int, or below `at_least`.
    """
    for name, value in settings.items():
        if value is None and optional:
            continue
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidArgumentError(f"{owner}: expected {name} to be an integer >= {at_least}, got {value!r}")
        if value < at_least:
            raise InvalidArgumentError(f"{owner}: expected {name} to be at least {at_least}, got {value}")


def check_seed(owner: str, value: object) -> None:
    """Refuse a seed that is not an integer from 0 to 2^32 - 1, the range of all generators.

    Raises:
        InvalidArgumentError: It is not.
    """
    check_ints(owner, seed=value, at_least=0)
    if isinstance(value, int) and value > LARGEST_SEED:
        raise InvalidArgumentError(f"{owner}: expected seed to be at most {LARGEST_SEED}, got {value}")


def number_of(value: object) -> float:
    """Return a setting as a number; NaN for anything else, such as text, None, True and False.

    Example:
        >>> number_of(3), number_of("3")
        (3.0, nan)
    """
    return float(value) if not isinstance(value, bool) and isinstance(value, Real) else float("nan")


def check_positive(owner: str, *, or_zero: bool = False, **settings: object) -> None:
    """Refuse settings that are not positive, finite numbers; zero is allowed if `or_zero`.

    Raises:
        InvalidArgumentError: A setting is not a number, is NaN, infinite or too small.
    """
    for name, value in settings.items():
        number = number_of(value)
        if not (0 < number < float("inf") or (or_zero and number == 0)):
            needed = "a finite number >= 0" if or_zero else "a positive, finite number"
            raise InvalidArgumentError(f"{owner}: expected {name} to be {needed}, got {value!r}")


def check_names(owner: str, name: str, value: object) -> None:
    """Refuse one name where a list is expected, because its letters would be taken as names.

    Raises:
        InvalidArgumentError: `value` is text.
    """
    if isinstance(value, str):
        raise InvalidArgumentError(f"{owner}: expected {name} to be a list of names, got {value!r}; write [{value!r}]")


def check_items(owner: str, name: str, value: object, kind: type) -> None:
    """Refuse anything but a list or tuple of objects of one class, such as a single object.

    Raises:
        InvalidArgumentError: `value` is not one.
    """
    if not isinstance(value, list | tuple) or not all(isinstance(item, kind) for item in value):
        hint = f"; write [{value!r}]" if isinstance(value, kind) else ""
        expected = f"expected {name} to be a list of {kind.__name__} objects"
        raise InvalidArgumentError(f"{owner}: {expected}, got {value!r}{hint}")


def check_choice(owner: str, name: str, value: object, choices: Collection[object]) -> None:
    """Refuse a setting that is not one of the choices.

    Raises:
        InvalidArgumentError: It is not.

    Example:
        >>> check_choice("ASH", "variant", "x", ("s", "p", "b"))
        Traceback (most recent call last):
            ...
        oodlit.base.errors.InvalidArgumentError: ASH: expected variant to be 's', 'p' or 'b', got 'x'
    """
    if value not in choices:
        *others, last = map(repr, choices)
        raise InvalidArgumentError(f"{owner}: expected {name} to be {', '.join(others)} or {last}, got {value!r}")


def memo_key(*tensors: Tensor) -> Hashable:
    """Return a key for `Outputs.memo` that changes with the tensors and with writes to them.

    The key contains the tensors and so keeps them alive, since the address of a freed tensor can be reused.
    """
    return tuple((t, version_of(t)) for t in tensors)


def where_float64_is(outputs: Outputs) -> Outputs:
    """Return the outputs, moved to the CPU if their device has no float64 (once per batch).

    Extra forward passes of the network still run on its own device.
    """
    if outputs.device.type not in WITHOUT_FLOAT64:
        return outputs
    return outputs.memo("on the CPU", lambda: _on_cpu(outputs))


def _on_cpu(outputs: Outputs) -> Outputs:
    model = None if outputs.model is None else _ModelElsewhere(outputs.model, outputs.device)
    return replace(outputs.to("cpu"), model=model)


class _ModelElsewhere:
    """Wraps a `Model` on another device, so that it accepts and returns CPU tensors."""

    def __init__(self, model: Model, device: torch.device) -> None:
        self._model, self._device = model, device

    @property
    def network(self) -> nn.Module:
        return self._model.network

    @property
    def std(self) -> Tensor:
        return self._model.std.cpu()

    def logits(self, images: Tensor) -> Tensor:
        return self._model.logits(images.to(self._device)).cpu()

    def features(self, images: Tensor) -> Tensor:
        return self._model.features(images.to(self._device)).cpu()

    def logits_from_map(self, feature_map: Tensor) -> Tensor:
        return self._model.logits_from_map(feature_map.to(self._device)).cpu()


@contextmanager
def plain_mode() -> Iterator[None]:
    """Leave inference mode, so that new tensors can be written to later, and disable gradients."""
    with torch.inference_mode(mode=False), torch.no_grad():
        yield


def is_traced() -> bool:
    """Return whether `torch.export` is tracing: code must then not branch on the values of tensors.

    Refinements of rare rows and checks of values are omitted while tracing.
    """
    return torch.compiler.is_compiling()


_deferred: ContextVar[list[Tensor] | None] = ContextVar("deferred", default=None)


@contextmanager
def deferred_checks() -> Iterator[list[Tensor]]:
    """Queue the conditions of `check_usual` within this block and assume that they are true, without waiting for a GPU.

    Yields:
        The conditions that were assumed. If one of them is false, everything computed meanwhile is invalid.

    Example:
        >>> with deferred_checks() as assumed:
        ...     check_usual(torch.tensor(1.0) > 2)
        True
        >>> assumed
        [tensor(False)]
    """
    assumed: list[Tensor] = []
    token = _deferred.set(assumed)
    try:
        yield assumed
    finally:
        _deferred.reset(token)


def check_usual(usual: Tensor) -> bool:
    """Check a condition that is almost always true; within `deferred_checks()` it is queued instead.

    Without a queue, reading the condition waits for the GPU.

    Args:
        usual: A single truth value.
    """
    if (assumed := _deferred.get()) is None:
        return bool(usual)
    assumed.append(usual)
    return True


def all_finite(value: Tensor) -> bool:
    """Return whether all values are finite; see `check_usual`.

    Example:
        >>> all_finite(torch.full((9,), 3e38)), all_finite(torch.tensor([1.0, float("inf"), float("-inf")]))
        (True, False)
    """
    # A finite sum has finite terms and is fast to compute; if it overflows, the terms are checked one by one.
    return check_usual(value.sum().isfinite()) or bool(value.isfinite().all())
