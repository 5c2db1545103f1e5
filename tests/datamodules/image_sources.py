"""Small folders and archives of images, to be packed into shards."""

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

from oodlit.datamodules.shards import Entry
from tests.tiny_shards import tiny_image

PNG = tiny_image(0)
FILES = {
    "set/donuts/donuts_001_0.9976.JPEG": tiny_image(1, format="JPEG"),
    "set/high heels/high heels_002.png": tiny_image(2),
    "set/high heels/high heels_002.jpg": tiny_image(3, format="JPEG"),
    "set/mbira/mbira_003.GIF": tiny_image(4, format="GIF"),
    "set/mbira/é_004.jpeg": tiny_image(5),  # a PNG by content
}
KINDS = ["folder", "zip", "tar", "tar.gz", "tar.xz"]


def write_source(kind: str, folder: Path, files: dict[str, bytes] = FILES) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "folder":
        for path, data in files.items():
            (folder / "tree" / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / "tree" / path).write_bytes(data)
        (folder / "tree" / ".hidden.jpg").write_bytes(b"x")
        return folder / "tree"
    path = folder / f"source.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("__MACOSX/set/._x.jpg", b"x")
            for name, data in files.items():
                archive.writestr(name, data)
        return path
    with tarfile.open(path, {"tar": "w", "tar.gz": "w:gz", "tar.bz2": "w:bz2", "tar.xz": "w:xz"}[kind]) as tar:
        for name, data in {"__MACOSX/set/._x.jpg": b"x", **files}.items():
            info = tarfile.TarInfo(f"./{name}" if kind == "tar" else name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def checksums(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}


def entries_of(paths: list[str]) -> list[Entry]:
    return [Entry(path, lambda: tiny_image(0)) for path in paths]
