"""Keys: reversible, and whole for WebDataset's own rule."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oodlit.datamodules.keys import escape_key, unescape_key
from oodlit.errors import InvalidArgumentError

names = st.text(st.characters(blacklist_characters="/\0", blacklist_categories=["Cs"]), min_size=1, max_size=12)
parts = st.one_of(names, st.sampled_from([".hidden", "__MACOSX", "a.b.jpg", "100%", "é.png", "a b"])).filter(
    lambda part: part not in (".", "..")
)
paths = st.lists(parts, min_size=1, max_size=4).map("/".join)

WEBDATASET_NAME = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")  # webdataset.tariterators.base_plus_ext


@given(paths)
@example("NINCO/x/x_001_0.9976.JPEG")
@example("\udc80.jpg")  # a name that is no UTF-8
def test_a_key_is_reversible_and_taken_whole(path: str) -> None:
    key = escape_key(path)
    assert unescape_key(key) == path
    match = WEBDATASET_NAME.match(key + ".jpg")
    assert match is not None
    assert match.groups() == (key, "jpg")
    assert key.isascii()
    assert key.isprintable()


@given(paths, paths)
def test_two_paths_never_share_a_key(first: str, second: str) -> None:
    assert (escape_key(first) == escape_key(second)) == (first == second)


@pytest.mark.parametrize("path", ["", "/a.jpg", "a//b.jpg", "../a.jpg", "a/./b.jpg", "a/"])
def test_paths_that_name_no_file_are_refused(path: str) -> None:
    with pytest.raises(InvalidArgumentError, match="expected a relative path"):
        escape_key(path)
