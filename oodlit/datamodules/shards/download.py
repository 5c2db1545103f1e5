"""Download an archive: resumed after interruptions, checked, and complete under its name or not there at all."""

from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from oodlit.base.atomic import fsync, lock
from oodlit.base.errors import DataError, InvalidArgumentError
from oodlit.base.retry import retried
from oodlit.base.secrets import mask_address
from oodlit.datamodules.shards.remote import hexdigest

Advance = Callable[[int, int | None], None]
"""Receives the number of bytes so far, and of all bytes if the server states it."""

_CHUNK = 2**20


def download(
    url: str, path: Path, *, md5: str = "", attempts: int = 5, backoff_s: float = 1.0, progress: Advance | None = None
) -> Path:
    """Download a file to `path`.

    Bytes arrive in `<name>.part`, which the next call continues if the server supports it.

    Args:
        url: Address with http or https.
        path: The file; its folder is created.
        md5: Expected MD5; "" = not known.
        attempts: Attempts after network failures, at least 1.
        backoff_s: Pause in seconds after the first failure, doubled after each further one.
        progress: Is called after every chunk.

    Returns:
        `path`. A file that exists is checked and kept.

    Raises:
        InvalidArgumentError: The address has another scheme.
        DataError: All attempts failed, the server refuses, or the checksum differs.
    """
    shown = mask_address(url)
    if not url.startswith(("http://", "https://")):
        raise InvalidArgumentError(f"{shown}: expected an address with http:// or https://")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    with lock(path.with_name(f".{path.name}.lock")):
        if not path.is_file():
            try:
                retried(lambda: _receive(url, part, progress), attempts=attempts, backoff_s=backoff_s, passing=OSError)
            except OSError as error:
                raise DataError(f"{shown}: {error}; run the command again to continue") from error
            _check(part, md5, shown, "The download was deleted; run")
            fsync(part)
            part.replace(path)
        else:
            _check(path, md5, path, "Remove or rename this file, and run", keep=True)
    return path


def _check(file: Path, md5: str, name: object, advice: str, *, keep: bool = False) -> None:
    if md5 and (found := checksum(file)) != md5:
        if not keep:
            file.unlink()
        raise DataError(f"{name}: expected MD5 {md5}, got {found}. {advice} the command again")


def checksum(path: Path) -> str:
    """The MD5 of a file."""
    with path.open("rb") as file:
        return hexdigest(file, "md5")


def _receive(url: str, part: Path, progress: Advance | None) -> None:
    """Receive the bytes that `part` does not have yet.

    Raises:
        OSError: The connection failed; another attempt may succeed.
        DataError: The server refuses the file.
    """
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "oodlit", **({"Range": f"bytes={have}-"} if have else {})}
    try:
        with urlopen(Request(url, headers=headers), timeout=60) as answer:
            is_rest = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
            have = have if is_rest else 0
            length = answer.headers.get("Content-Length")
            total = None if length is None else have + int(length)
            with part.open("ab" if is_rest else "wb") as file:
                while chunk := answer.read(_CHUNK):
                    file.write(chunk)
                    have += len(chunk)
                    if progress is not None:
                        progress(have, total)
    except HTTPError as error:
        if error.code == 416 and error.headers.get("Content-Range", "").endswith(f"/{have}"):
            return  # all bytes arrived before
        if error.code == 416:
            part.unlink()
        if error.code in (401, 403, 404, 410):
            raise DataError(f"{mask_address(url)}: the server answered {error.code} {error.reason}") from error
        raise
    except HTTPException as error:
        raise ConnectionError(f"the connection ended early: {error!r}") from error
    if total is not None and have != total:
        raise ConnectionError(f"the connection ended after {have:,} of {total:,} bytes")
