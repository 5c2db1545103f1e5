"""Checks of what a detector or a statistic is given: finite values, known widths, whole numbers as settings."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor

from oodlit.errors import InvalidArgumentError
from oodlit.outputs import Head, Outputs

__all__ = [
    "all_finite",
    "check_alike",
    "check_finite",
    "check_head",
    "check_int",
    "check_outputs",
    "check_shapes",
    "first_of",
    "identity",
    "plain_mode",
    "shapes_of",
]

_CHECKED = ("logits", "features", "images")


def check_finite(
    owner: object, outputs: Outputs, needs: Iterable[str], finite_proxy: Mapping[str, Tensor] = MappingProxyType({})
) -> None:
    """Every field that is read holds finite numbers; looked up once per batch, whatever the number of detectors.

    A logit of minus infinity stands for a class that is masked, and is allowed beside a finite one.

    Args:
        owner: Named in the error.
        outputs: A batch.
        needs: Fields that are read; others are not looked at.
        finite_proxy: By field: a smaller tensor, such as sums, that is computed anyway and is finite only if the field
            is. It is looked at in place of the field.

    Raises:
        InvalidArgumentError: A field that is read holds NaN or infinities; names the first keys, or rows.
    """
    needs = frozenset(needs)
    fields = {name: value for name in _CHECKED if name in needs and (value := getattr(outputs, name)) is not None}
    if "hidden" in needs:
        fields |= {f"hidden[{name!r}]": value for name, value in (outputs.hidden or {}).items()}
    for name, value in fields.items():
        # The largest logits are needed anyway; they are NaN or infinite where a logit is.
        looked_at = outputs.max_logits if name == "logits" else value
        if outputs.memo(("finite", name), partial(all_finite, finite_proxy.get(name, looked_at))):
            continue
        bad = ~looked_at.reshape(len(outputs), -1).isfinite().all(dim=1)
        rows = bad.nonzero().flatten().tolist()
        if not rows:
            raise InvalidArgumentError(
                f"{owner!r}: {name} are finite, but their sum over the images is beyond {value.dtype}; scale them down"
            )
        kind = "NaN" if value[bad].isnan().any() else "infinite values"
        raise InvalidArgumentError(
            f"{owner!r}: {len(rows)} of {len(outputs)} images have {kind} in {name} ({first_of(outputs, rows)});"
            " look at these images, the weights and the precision of the backbone"
        )


def first_of(outputs: Outputs, rows: Sequence[int]) -> str:
    """The first three images of `rows` by their keys, or by their places in the batch where there are no keys.

    Example:
        >>> first_of(Outputs(torch.ones(9, 2)), [1, 4, 5, 8]), first_of(Outputs(torch.ones(1, 2), keys=["a/b"]), [0])
        ('first rows: 1, 4, 5', 'first: a/b')
    """
    if outputs.keys is None:
        return f"first rows: {', '.join(map(str, rows[:3]))}"
    return f"first: {', '.join(outputs.keys[i] for i in rows[:3])}"


def shapes_of(outputs: Outputs, needs: Iterable[str]) -> dict[str, int]:
    """Number of logits and of features, where they are read and there.

    Example:
        >>> shapes_of(Outputs(torch.ones(2, 3), torch.ones(2, 5)), {"features"})
        {'features': 5}
    """
    fields = {name: getattr(outputs, name) for name in ("logits", "features") if name in needs}
    return {name: value.shape[1] for name, value in fields.items() if value is not None}


def check_outputs(owner: object, outputs: object) -> None:
    """What is scored are `Outputs`.

    Raises:
        InvalidArgumentError: It is something else, such as a tensor.
    """
    if not isinstance(outputs, Outputs):
        raise InvalidArgumentError(
            f"{owner!r}: score takes Outputs, not a {type(outputs).__name__}; wrap it: Outputs(logits, features)"
        )


def check_shapes(owner: object, found: Mapping[str, int], known: Mapping[str, int], what: str, source: str) -> None:
    """Numbers of logits and features are those that are known.

    Raises:
        InvalidArgumentError: One differs.
    """
    for name in found.keys() & known.keys():
        if found[name] != known[name]:
            raise InvalidArgumentError(f"{owner!r}: {what} {found[name]} {name} per image, but {source} {known[name]}")


def check_alike(owner: object, own: object, other: object) -> None:
    """What two parts of a training set left has the same shape.

    Raises:
        InvalidArgumentError: It differs.
    """
    if own != other:
        raise InvalidArgumentError(
            f"{owner!r}: what is merged differs in its shape, {other} after {own};"
            " both parts must come from the same backbone and have the same settings"
        )


def check_head(owner: object, head: Head) -> None:
    """Weights and bias of a head are finite; a bias of minus infinity stands for a class that is masked.

    Raises:
        InvalidArgumentError: They are not.
    """
    unmasked = head.offset[head.offset != -float("inf")]
    if not (all_finite(head.weight) and all_finite(unmasked)):
        raise InvalidArgumentError(
            f"{owner!r}: the head holds NaN or infinite values; look at the weights of the backbone"
        )


def check_int(owner: str, name: str, value: object, *, at_least: int = 1) -> None:
    """A setting is a whole number.

    Raises:
        InvalidArgumentError: It is none, or too small.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidArgumentError(f"{owner}: {name}={value!r}; a whole number, at least {at_least}, is needed")
    if value < at_least:
        raise InvalidArgumentError(f"{owner}: {name}={value}; at least {at_least} is needed")


def identity(*tensors: Tensor) -> Hashable:
    """What tells tensors, and their content, from others: a key for `Outputs.memo`.

    The tensors are part of the key, which keeps them alive: an address alone may belong to other tensors after a refit.
    """
    return tuple((t, None if t.is_inference() else t._version) for t in tensors)


@contextmanager
def plain_mode() -> Iterator[None]:
    """No gradients and no inference mode: tensors made in that mode could not be written to outside of it."""
    with torch.inference_mode(mode=False), torch.no_grad():
        yield


def all_finite(value: Tensor) -> bool:
    """Whether all values are finite; waits for the device.

    Example:
        >>> all_finite(torch.full((9,), 3e38)), all_finite(torch.tensor([1.0, float("inf"), float("-inf")]))
        (True, False)
    """
    # A sum is finite only if every term is: the cheapest look at all of them. It may also overflow.
    return bool(value.sum().isfinite()) or bool(value.isfinite().all())
