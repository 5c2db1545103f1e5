"""Listings: which images a set has, and their labels, groups and class names."""

from pathlib import Path

import pytest

from oodlit.datamodules.shards import Assignment, ShardSource, build_shards, class_listing, listed_listing, map_files
from oodlit.errors import DataError
from oodlit.roles import Role
from tests.datamodules.image_sources import PNG, write_source
from tests.tiny_shards import tiny_image


class TestListings:
    @pytest.mark.parametrize("kind", ["folder", "zip", "tar", "tar.gz"])
    def test_images_at_the_root_have_no_classes(self, tmp_path: Path, kind: str) -> None:
        source = write_source(kind, tmp_path, {"1.png": PNG, "2.png": PNG})
        listing = class_listing(source, Role.OOD)
        assert (listing.class_names, sorted(entry.path for entry in listing)) == ((), ["1.png", "2.png"])
        with pytest.raises(DataError, match="all images are in one folder"):
            class_listing(source, Role.ID)

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("l.txt", "a/1.png\n".encode("utf-16"), r"l\.txt is not UTF-8 .*; save it as UTF-8"),
            ("l.csv", "path,group\na/1.png,é\n".encode("latin-1"), r"l\.csv is not UTF-8"),
            ("l.csv", b"path,label\na/1.png\n", "line 2: expected as many columns"),
            ("l.csv", b"path,label\na/1.png,1,2\n", "line 2: expected as many columns"),
            ("l.csv", b"path,label\na/1.png,9999999999\n", "expected a class index .*'9999999999'"),
            ("l.csv", b"path;label\na/1.png;1\n", "expected a column 'path', got the columns path;label; add"),
            ("l.csv", b"", "expected a column 'path', got an empty file; add"),
        ],
    )
    def test_lists_with_faults(self, tmp_path: Path, name: str, content: bytes, message: str) -> None:
        source = self.tree(tmp_path / "images", "a/1.png")
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=message):
            listed_listing(tmp_path / name, source)

    @pytest.mark.parametrize("line", ["./a/1.png 3\r\n", "\ufeffa/1.png 3", "a/1.png 3\n\n"])
    def test_lists_as_programs_write_them(self, tmp_path: Path, line: str) -> None:
        (tmp_path / "l.txt").write_bytes(line.encode())
        found = listed_listing(tmp_path / "l.txt", self.tree(tmp_path / "images", "a/1.png"))
        assert [(entry.path, entry.label) for entry in found] == [("a/1.png", 3)]

    def test_folders_of_a_shifted_set_are_labels_not_groups(self, tmp_path: Path) -> None:
        listing = class_listing(self.tree(tmp_path, "a/1.png", "b/2.png"), Role.SHIFT)
        assert listing.class_names == ()
        assert [(entry.label, entry.group) for entry in listing] == [(0, -1), (1, -1)]

    @pytest.mark.parametrize("role", [Role.ID, Role.OOD, Role.SHIFT])
    @pytest.mark.parametrize("top", ["", "photos/"])
    def test_images_beside_the_class_folders_are_no_class(self, tmp_path: Path, role: Role, top: str) -> None:
        tree = self.tree(tmp_path, *(f"{top}{name}" for name in ("cat/1.png", "dog/2.png", "sheet.png")))
        with pytest.raises(DataError, match=rf"1 image is beside the class folders 'cat', 'dog' .* '{top}sheet.png'"):
            class_listing(tree, role)
        assert len(class_listing(tree, role, by_folder=False)) == 3

    def test_control_characters_in_folder_names_are_spelt_out(self, tmp_path: Path) -> None:
        listing = class_listing(self.tree(tmp_path, "two\nlines/1.png", "b/2.png"), Role.OOD)
        assert listing.class_names == ("b", r"two\nlines")

    def test_folder_names_that_are_no_utf8_can_be_written_anywhere(self, tmp_path: Path) -> None:
        listing = class_listing(write_source("tar", tmp_path, {"caf\udce9/1.png": PNG, "b/2.png": PNG}), Role.OOD)
        assert listing.class_names == ("b", r"caf\xe9")
        info = build_shards(listing, tmp_path / "out", name="s", role=Role.OOD, class_names=listing.class_names)
        assert [s.key for s in ShardSource(tmp_path / "out").read(0, 2)] == ["caf%E9/1%2Epng", "b/2%2Epng"]
        "".join(info.class_names).encode()

    def tree(self, folder: Path, *paths: str) -> Path:
        for path in paths:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(tiny_image(0))
        return folder

    def test_numbered_folders_are_their_own_index(self, tmp_path: Path) -> None:
        listing = class_listing(self.tree(tmp_path, *(f"{i}/x.jpeg" for i in range(12))), Role.ID)
        assert {entry.path: entry.label for entry in listing}["2/x.jpeg"] == 2
        assert {entry.path: entry.label for entry in listing}["11/x.jpeg"] == 11

    def test_numbers_with_gaps_need_names(self, tmp_path: Path) -> None:
        source = self.tree(tmp_path, "3/x.jpeg", "20/x.jpeg")
        with pytest.raises(DataError, match=r"numbers, but not 0, \.\.\., 1 .* pass class_names"):
            class_listing(source, Role.ID)
        listing = class_listing(source, Role.ID, class_names=[str(i) for i in range(30)])
        assert sorted(entry.label for entry in listing) == [3, 20]

    def test_two_classes_of_one_name_stay_two(self, tmp_path: Path) -> None:
        source = self.tree(tmp_path, "d/bird/crane/1.jpg", "d/machine/crane/1.jpg")
        assert class_listing(source, Role.OOD).class_names == ("bird/crane", "machine/crane")

    def test_flat_sets(self, tmp_path: Path) -> None:
        source = self.tree(tmp_path, "images/1.jpg", "images/2.jpg")
        assert [(entry.label, entry.group) for entry in class_listing(source, Role.OOD)] == [(-1, -1)] * 2
        with pytest.raises(DataError, match=r"one folder, 'images', but .*sets of role id require class folders"):
            class_listing(source, Role.ID)
        with pytest.raises(DataError, match=r"2 folders \(first: 'a'\) have names that are not among the 1 class name"):
            class_listing(self.tree(tmp_path / "n", "a/1.jpg", "b/1.jpg"), Role.ID, class_names=["c"])
        with pytest.raises(DataError, match=r"1 folder \(first: 'b'\) has names .*, or add their names to class_names"):
            class_listing(tmp_path / "n", Role.ID, class_names=["a"])

    def test_other_files_are_left_out_with_a_warning(self, tmp_path: Path) -> None:
        source = self.tree(tmp_path, "a/1.jpg", "b/1.jpg", "README.md")
        with pytest.warns(UserWarning, match=r"1 file without an image extension \(first: 'README\.md'\) is left out"):
            assert len(class_listing(source, Role.OOD)) == 2

    def test_rule(self, tmp_path: Path) -> None:
        source = self.tree(tmp_path, "x/1.jpg", "y/2.jpg")
        listing = map_files(source, lambda path: Assignment(group=4, path="z.jpg") if path.startswith("x") else None)
        assert [(entry.path, entry.group) for entry in listing] == [("z.jpg", 4)]
        with pytest.raises(
            DataError, match=r"no image of the data set among 2 files \(first: 'x/1\.jpg', 'y/2\.jpg'\)"
        ):
            map_files(source, lambda path: None)

    @pytest.mark.parametrize("by_folder", [True, False])
    def test_an_empty_folder_is_named(self, tmp_path: Path, by_folder: bool) -> None:
        (tmp_path / "empty").mkdir()
        with pytest.raises(DataError, match=r"^\S*empty: found no image of the data set among 0 files; check"):
            class_listing(tmp_path / "empty", Role.OOD, by_folder=by_folder)

    def test_csv(self, tmp_path: Path) -> None:
        self.tree(tmp_path, "a/1.jpg", "b 2.jpg")
        (tmp_path / "list.csv").write_text("path,label,group\na/1.jpg,7,sea\nb 2.jpg,,land\n")
        listing = listed_listing(tmp_path / "list.csv")
        assert listing.class_names == ("land", "sea")
        assert [(e.path, e.label, e.group) for e in listing] == [("a/1.jpg", 7, 1), ("b 2.jpg", -1, 0)]

    def test_plain_list(self, tmp_path: Path) -> None:
        self.tree(tmp_path / "d", "a/1.jpg", "b 2", "c.jpg")
        (tmp_path / "list.txt").write_text("a/1.jpg 7\nb 2\n\nc.jpg\n")
        listing = listed_listing(tmp_path / "list.txt", tmp_path / "d")
        assert [(e.path, e.label) for e in listing] == [("a/1.jpg", 7), ("b 2", -1), ("c.jpg", -1)]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("path,label\na.jpg,1\na.jpg,2\n", r"line 3: 'a\.jpg' is listed twice"),
            ("path,label\nno.jpg,1\n", r"line 2: 'no\.jpg' is not in"),
            ("path,label\na.jpg,cat\n", r"'a\.jpg': expected a class index .*'cat'"),
            ("file,label\na.jpg,1\n", r"expected a column 'path'"),
            ("path,group\na.jpg,1\nb.jpg,sea\n", r"groups must be either all names or all numbers, .*'sea'"),
        ],
    )
    def test_faulty_lists(self, tmp_path: Path, text: str, message: str) -> None:
        self.tree(tmp_path, "a.jpg", "b.jpg")
        (tmp_path / "list.csv").write_text(text)
        with pytest.raises(DataError, match=message):
            listed_listing(tmp_path / "list.csv")
