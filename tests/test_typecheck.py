"""What is called with the wrong types or shapes fails in the suite, wherever in the package that is."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.detectors.formulas.neighbors import default_k
from oodlit.detectors.statistics.feature_bank import exact_scaling
from oodlit.results import DatasetInfo
from oodlit.roles import Role
from tests.typecheck import check, checked

decorate: Any = checked(typechecker=check)
WRONG: Any = 1.5


@decorate  # type: ignore[untyped-decorator]
def products(rows: Float[Tensor, "batch width"], columns: Float[Tensor, "width n"]) -> Float[Tensor, "batch n"]:
    return rows @ columns if columns[0, 0] > 0 else columns


@decorate  # type: ignore[untyped-decorator]
def halves(number: float) -> Iterator[float]:
    yield number / 2


@dataclasses.dataclass
class Pair:
    first: int
    second: str


def test_axes_of_one_name_have_one_length() -> None:
    assert products(torch.ones(2, 3), torch.ones(3, 5)).shape == (2, 5)
    assert products(torch.ones(4, 1), torch.ones(1, 5)).shape == (4, 5)  # lengths of one call bind no other
    with pytest.raises(TypeError, match="Type-check error"):
        products(torch.ones(2, 3), torch.ones(4, 5))
    with pytest.raises(TypeError, match="Type-check error"):
        products(torch.ones(2, 3, dtype=torch.int64), torch.ones(3, 5))
    with pytest.raises(TypeError, match=r"Type-check error: .* return"):
        products(torch.ones(2, 3), -torch.ones(3, 5))


def test_functions_dataclasses_and_generators() -> None:
    assert list(halves(3)) == [1.5]
    with pytest.raises(TypeError, match="Type-check error"):
        halves(str(WRONG))
    kind = decorate(Pair)
    assert decorate(kind) is kind is Pair
    assert Pair(1, "a") == Pair(first=1, second="a")
    with pytest.raises(TypeError, match="Type-check error"):
        Pair(WRONG, "a")


def test_the_package_is_checked() -> None:
    with pytest.raises(TypeError, match="Type-check error"):
        exact_scaling(torch.ones(3))
    with pytest.raises(TypeError, match="Type-check error"):
        default_k(WRONG)
    with pytest.raises(TypeError, match="Type-check error"):
        DatasetInfo(name=WRONG, role=Role.ID)


def test_checks_can_be_left_out() -> None:
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with pytest.raises(RuntimeError):
            products(torch.ones(2, 3), torch.ones(4, 5))
        assert list(halves(np.float32(3))) == [1.5]
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
