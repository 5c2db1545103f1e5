"""Roles of streams."""

import pytest

from oodlit.errors import InvalidArgumentError
from oodlit.roles import Role


@pytest.mark.parametrize("value", ["idd", "", "OOD", None, 3])
def test_what_is_no_role_is_refused_with_all_roles(value):
    with pytest.raises(InvalidArgumentError) as caught:
        Role(value)
    assert repr(value) in str(caught.value)
    assert all(repr(str(role)) in str(caught.value) for role in Role)


@pytest.mark.parametrize("role", list(Role))
def test_a_role_is_its_plain_value(role):
    assert Role(str(role)) is role
    assert role == str(role)
