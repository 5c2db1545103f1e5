"""Checks of what detectors and statistics are given: finite values, known widths, whole numbers as settings."""

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from numbers import Real
from types import MappingProxyType

import torch
from torch import Tensor, nn

from oodlit.errors import InvalidArgumentError
from oodlit.outputs import Head, Model, Outputs, version_of

WITHOUT_FLOAT64 = frozenset({"mps"})
"""Types of devices that cannot hold float64."""
LARGEST_SEED = 2**32 - 1
LARGEST = 1e100
"""Largest value in float64 that is scored: sums of squares and products of larger ones leave float64. Every value in
float32 is below it."""
_CHECKED = ("logits", "features", "images")


def check_finite(
    owner: object, outputs: Outputs, needs: Iterable[str], finite_proxy: Mapping[str, Tensor] = MappingProxyType({})
) -> None:
    """Refuse a batch in which a field that is read cannot be scored; each field is looked at once per batch.

    NaN and infinities cannot be, nor values beyond `LARGEST`, of which some formulas would make NaN and infinities. A
    logit far below zero, down to minus infinity, stands for a class that is masked: it is allowed beside others.

    Args:
        owner: Named in the error.
        outputs: A batch.
        needs: Fields that are read; others are not looked at.
        finite_proxy: By field: a smaller tensor, such as sums, that is computed anyway and is finite only if the field
            is. It is looked at in place of a field in float32.

    Raises:
        InvalidArgumentError: A field that is read holds such values; names the first keys, or rows.
    """
    needs = frozenset(needs)
    fields = {name: value for name in _CHECKED if name in needs and (value := getattr(outputs, name)) is not None}
    if "hidden" in needs:
        fields |= {f"hidden[{name!r}]": value for name, value in (outputs.hidden or {}).items()}
    for name, value in fields.items():
        # The largest logits are needed anyway; they are NaN or infinite where a logit is.
        looked_at = outputs.max_logits if name == "logits" else value
        if outputs.memo(("finite", name), partial(_all_can_be_scored, looked_at, finite_proxy.get(name, looked_at))):
            continue
        bad = ~_can_be_scored(looked_at).reshape(len(outputs), -1).all(dim=1)
        rows, found = bad.nonzero().flatten().tolist(), looked_at[bad]
        kind = "NaN" if found.isnan().any() else "infinite values"
        way_out = "look at these images, the weights and the precision of the backbone"
        if found.isfinite().all():
            kind, way_out = f"values beyond {LARGEST:g}", f"scale them down, or {way_out}"
        raise InvalidArgumentError(
            f"{owner!r}: {len(rows)} of {len(outputs)} images have {kind} in {name} ({name_images(outputs, rows)});"
            f" {way_out}"
        )


def _can_be_scored(value: Tensor) -> Tensor:
    return value.abs() <= LARGEST if value.dtype == torch.float64 else value.isfinite()


def _all_can_be_scored(value: Tensor, finite_proxy: Tensor) -> bool:
    if value.dtype != torch.float64 or not value.numel():
        return all_finite(finite_proxy)
    low, high = value.aminmax()  # one pass, and no tensor as large as the field
    return check_usual((-low <= LARGEST) & (high <= LARGEST))


def name_images(outputs: Outputs, rows: Sequence[int]) -> str:
    """Name the first three images of `rows`: by their keys, or by their places in the batch where there are none.

    Example:
        >>> name_images(Outputs(torch.ones(9, 2)), [1, 4, 5, 8])
        'first rows: 1, 4, 5'
    """
    if outputs.keys is None:
        return f"first rows: {', '.join(map(str, rows[:3]))}"
    return f"first: {', '.join(outputs.keys[i] for i in rows[:3])}"


def sizes_of(outputs: Outputs, needs: Iterable[str]) -> dict[str, int]:
    """Count the logits and the features of an image, as far as they are read and the batch has them.

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
            f"{owner!r}: score takes Outputs, not a {type(outputs).__name__}; wrap it: Outputs(logits, features)"
        )


def check_shapes(owner: object, found: Mapping[str, int], known: Mapping[str, int], what: str, source: str) -> None:
    """Refuse numbers of logits and features other than those that are known.

    Raises:
        InvalidArgumentError: One differs.
    """
    for name in found.keys() & known.keys():
        if found[name] != known[name]:
            raise InvalidArgumentError(f"{owner!r}: {what} {found[name]} {name} per image, but {source} {known[name]}")


def check_same_shape(owner: object, own: object, other: object) -> None:
    """Refuse to merge what two parts of a training set left, if it differs in shape.

    Raises:
        InvalidArgumentError: The shapes differ.
    """
    if own != other:
        raise InvalidArgumentError(
            f"{owner!r}: what is merged differs in its shape, {other} after {own};"
            " both parts must come from the same backbone and have the same settings"
        )


def check_head(owner: object, head: Head) -> None:
    """Refuse a head that is not finite; a bias of minus infinity stands for a class that is masked, and is allowed.

    Raises:
        InvalidArgumentError: A weight or a bias is NaN or infinite.
    """
    unmasked = head.offset[head.offset != -float("inf")]
    if not (all_finite(head.weight) and all_finite(unmasked)):
        raise InvalidArgumentError(
            f"{owner!r}: the head holds NaN or infinite values; look at the weights of the backbone"
        )


def check_int(owner: str, name: str, value: object, *, at_least: int = 1, optional: bool = False) -> None:
    """Refuse a setting that is no whole number, or too small; None is allowed where it is `optional`.

    Raises:
        InvalidArgumentError: `value` is no int, or below `at_least`.
    """
    if value is None and optional:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidArgumentError(f"{owner}: {name}={value!r}; a whole number, at least {at_least}, is needed")
    if value < at_least:
        raise InvalidArgumentError(f"{owner}: {name}={value}; at least {at_least} is needed")


def check_seed(owner: str, value: object) -> None:
    """Refuse a seed that is no whole number from 0 to 2^32 - 1, those that every generator takes.

    Raises:
        InvalidArgumentError: It is another value.
    """
    check_int(owner, "seed", value, at_least=0)
    if isinstance(value, int) and value > LARGEST_SEED:
        raise InvalidArgumentError(f"{owner}: seed={value}; at most {LARGEST_SEED} is needed")


def number_of(value: object) -> float:
    """The number that a setting is; NaN where it is none, such as text, None, True and False.

    Example:
        >>> number_of(3), number_of("3")
        (3.0, nan)
    """
    return float(value) if not isinstance(value, bool) and isinstance(value, Real) else float("nan")


def check_positive(owner: str, name: str, value: object, *, or_zero: bool = False) -> None:
    """Refuse a setting that is no positive, finite number; zero is allowed where `or_zero` says so.

    Raises:
        InvalidArgumentError: `value` is no number, NaN, infinite or too small.
    """
    number = number_of(value)
    if not (0 < number < float("inf") or (or_zero and number == 0)):
        needed = "a finite number >= 0" if or_zero else "a positive, finite number"
        raise InvalidArgumentError(f"{owner}: {name}={value!r}; {needed} is needed")


def check_choice(owner: str, name: str, value: object, choices: Collection[object]) -> None:
    """Refuse a setting that is none of the choices.

    Raises:
        InvalidArgumentError: `value` is another one.

    Example:
        >>> check_choice("ASH", "variant", "x", ("s", "p", "b"))
        Traceback (most recent call last):
            ...
        oodlit.errors.InvalidArgumentError: ASH: variant='x'; 's', 'p' or 'b' is needed
    """
    if value not in choices:
        *others, last = map(repr, choices)
        raise InvalidArgumentError(f"{owner}: {name}={value!r}; {', '.join(others)} or {last} is needed")


def memo_key(*tensors: Tensor) -> Hashable:
    """A key for `Outputs.memo` that differs for other tensors, and after a tensor was written to.

    The key holds the tensors and so keeps them alive: the address of a freed tensor may belong to another one later.
    """
    return tuple((t, version_of(t)) for t in tensors)


def where_float64_is(outputs: Outputs) -> Outputs:
    """The outputs on the CPU, moved once per batch, if their device has no float64; else as they are.

    Further passes of the network still run on its own device.
    """
    if outputs.device.type not in WITHOUT_FLOAT64:
        return outputs
    return outputs.memo("on the CPU", lambda: _on_cpu(outputs))


def _on_cpu(outputs: Outputs) -> Outputs:
    model = None if outputs.model is None else _ModelElsewhere(outputs.model, outputs.device)
    return replace(outputs.to("cpu"), model=model)


class _ModelElsewhere:
    """A `Model` on another device, for tensors on the CPU."""

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
    """Leave inference mode, and record no gradients: tensors made in inference mode could not be written to later."""
    with torch.inference_mode(mode=False), torch.no_grad():
        yield


def is_traced() -> bool:
    """Whether `torch.export` traces this: no value of a tensor may decide what is done then.

    Refinements of rare rows, and checks of values, are left out of what is traced.
    """
    return torch.compiler.is_compiling()


_put_off: ContextVar[list[Tensor] | None] = ContextVar("put_off", default=None)


@contextmanager
def deferred_checks() -> Iterator[list[Tensor]]:
    """Take what is usual for granted: `check_usual` waits for no device, and gives True.

    Gives:
        What was taken for granted. Where some of it does not hold, everything that was computed meanwhile is void.

    Example:
        >>> with deferred_checks() as granted:
        ...     check_usual(torch.tensor(1.0) > 2)
        True
        >>> granted
        [tensor(False)]
    """
    granted: list[Tensor] = []
    token = _put_off.set(granted)
    try:
        yield granted
    finally:
        _put_off.reset(token)


def check_usual(usual: Tensor) -> bool:
    """Whether something holds that holds for nearly every batch; waits for the device, unless `deferred_checks`.

    Args:
        usual: One truth value.
    """
    granted = _put_off.get()
    if granted is None:
        return bool(usual)
    granted.append(usual)
    return True


def all_finite(value: Tensor) -> bool:
    """Whether all values are finite; see `check_usual`.

    Example:
        >>> all_finite(torch.full((9,), 3e38)), all_finite(torch.tensor([1.0, float("inf"), float("-inf")]))
        (True, False)
    """
    # A finite sum has finite terms, and a sum is quick to form; where it overflows, the terms are looked at one by one.
    return check_usual(value.sum().isfinite()) or bool(value.isfinite().all())
