"""Shards behind a URL: fetched whole into a local cache, checked, retried, never silently short."""

import contextlib
import hashlib
import os
import re
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import fsspec

from oodlit.base.atomic import fsync, lock, temporary_file
from oodlit.base.retry import retried
from oodlit.datamodules.shards.copies import CHUNK, has_checksum, is_whole
from oodlit.errors import DataError, InvalidArgumentError, MissingExtraError

PROTOCOLS = ("http", "https", "s3", "gs", "gcs", "hf", "az", "abfs")
"""URL schemes that are read. There is no "pipe:" and no chaining with "::": nothing in a name starts a program."""

_T = TypeVar("_T")


def is_url(path: str) -> bool:
    """Whether `path` names something on the network.

    Raises:
        InvalidArgumentError: It has a scheme that is not read.

    Example:
        >>> is_url("https://example.org/a-000000.tar"), is_url("shards/a-000000.tar")
        (True, False)
    """
    scheme, separator, _ = path.partition("://")
    if path.startswith("pipe:") or "::" in path or (separator and scheme not in PROTOCOLS):
        raise InvalidArgumentError(
            f"{path!r}: only local paths and URLs of {', '.join(PROTOCOLS)} are read; no pipes, no chained URLs"
        )
    return bool(separator)


def split_url(url: str) -> tuple[str, str, str]:
    """Folder, file name, and the query behind it ("?..." or "").

    Example:
        >>> split_url("https://example.org/set/a.tar?token=b/c")
        ('https://example.org/set', 'a.tar', '?token=b/c')
    """
    path = re.split(r"[?#]", url, maxsplit=1)[0]
    folder, _, name = path.rstrip("/").rpartition("/")
    return folder, name, url[len(path) :]


def _info(system: Any, name: str) -> dict[str, Any]:
    """Facts of a file. fsspec's HTTP takes every failure for a missing file; here each gets an error of its own."""
    try:
        return dict(system.info(name))
    except FileNotFoundError as error:
        cause = error.__cause__
        if cause is None or isinstance(cause, FileNotFoundError):
            raise
        status = getattr(cause, "status", None)
        reason = f"{type(cause).__name__} {status or cause}"
        if status in (401, 403):
            raise PermissionError(reason) from cause
        if status in (404, 410):
            raise
        raise OSError(reason) from cause  # such as a busy server: tried again


@dataclass(frozen=True)
class Cache:
    """Local copies of remote files, and how often reading is tried, of local shards too.

    Args:
        folder: Where copies are kept, under a name that the URL decides. None (default) =
            `$OODLIT_CACHE`, else `~/.cache/oodlit`. Nothing is ever removed from it.
        attempts: Tries per file, at least 1. Default 5.
        backoff_s: Pause in seconds after the first failure, doubled after each further one. Default 0.5.
        timeout_s: Over HTTP, silence in seconds that ends an attempt. Default 60. A long transfer is no silence.
        storage_options: Passed to fsspec (credentials, endpoint), as pairs of name and value.

    Raises:
        InvalidArgumentError: A number is out of its range.
    """

    folder: str | Path | None = None
    attempts: int = 5
    backoff_s: float = 0.5
    timeout_s: float = 60.0
    storage_options: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.attempts < 1 or self.backoff_s < 0:
            raise InvalidArgumentError(
                f"Cache(attempts={self.attempts}, backoff_s={self.backoff_s}):"
                " attempts >= 1 and backoff_s >= 0 are needed"
            )

    def path(self, url: str) -> Path:
        """Where the copy of `url` lies or will lie."""
        home = self.folder or os.environ.get("OODLIT_CACHE") or Path.home() / ".cache" / "oodlit"
        digest = hashlib.sha256(url.encode()).hexdigest()[:16]
        return Path(home) / digest / split_url(url)[1]

    def retry(self, action: Callable[[], _T], what: str) -> _T:
        """`action()`, tried again after an `OSError` or another failure of the network.

        Raises:
            DataError: It failed `attempts` times, or the thing does not exist or may not be read.
            MissingExtraError: fsspec needs a further package for this kind of URL.
        """
        lasting = (FileNotFoundError, PermissionError, ImportError)
        try:
            return retried(action, attempts=self.attempts, backoff_s=self.backoff_s, lasting=lasting)
        except FileNotFoundError as error:
            raise DataError(f"{what} does not exist; check the path, or fetch the missing file") from error
        except PermissionError as error:
            raise DataError(f"{what} may not be read ({error}); check the access rights") from error
        except ImportError as error:
            raise MissingExtraError(f"{what}: {error}") from error
        except Exception as error:  # every file system of fsspec has its own kinds
            reason = str(error) or type(error).__name__
            raise DataError(f"{what} cannot be read after {self.attempts} attempts: {reason}") from error

    def fetch(self, url: str, *, size: int | None = None, sha256: str | None = None, fresh: bool = False) -> Path:
        """The local copy of `url`, downloaded if it is not there, or in any case if `fresh`.

        A download counts only if it has the announced length and, where the manifest knows them, the right size and
        checksum; a tar must also have its end mark. Otherwise it is tried again. A copy that is there counts by the
        same rules: its checksum is taken when a process first opens it, which reads the file once more (half a second
        per gigabyte where the processor has SHA instructions, 2 to 3 s without). A copy of another checksum is fetched
        anew.

        Raises:
            DataError: Every attempt failed, or the copy is another file and cannot be replaced.
        """
        path = self.path(url)

        def is_there() -> bool:
            return not fresh and is_whole(path, size) and (sha256 is None or has_checksum(path, sha256))

        if is_there():
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:  # readers of one machine share one download
            try:
                stack.enter_context(lock(path.with_name(f".{path.name}.lock")))
                is_writable = True
            except OSError:
                is_writable = False
            if is_there():  # another reader was faster
                return path
            what = url
            if not fresh and is_whole(path, size):
                what += f" (the copy {path} is damaged or outdated: its checksum differs from the manifest's)"
            if not is_writable:
                raise DataError(f"{what}: {path.parent} cannot be written; name a folder that can: Cache(folder=...)")
            return self.retry(lambda: self._download(url, path, size, sha256), what)

    def _options(self, url: str) -> dict[str, Any]:
        options = dict(self.storage_options)
        if url.startswith("http") and "client_kwargs" not in options:
            from aiohttp import ClientTimeout  # noqa: PLC0415 - comes with fsspec[http]

            timeout = ClientTimeout(total=None, sock_connect=self.timeout_s, sock_read=self.timeout_s)
            options["client_kwargs"] = {"timeout": timeout}
        return options

    def _download(self, url: str, path: Path, size: int | None, sha256: str | None) -> Path:
        digest = hashlib.sha256()
        tail = b""
        with temporary_file(path) as temporary:
            system, name = fsspec.core.url_to_fs(url, **self._options(url))
            announced = _info(system, name).get("size")
            with system.open(name, "rb", cache_type="none", block_size=0) as source, temporary.open("wb") as file:
                while chunk := source.read(CHUNK):
                    file.write(chunk)
                    digest.update(chunk)
                    tail = (tail + chunk)[-2 * tarfile.BLOCKSIZE :]
                length = file.tell()
            for wanted in (announced, size):
                if wanted is not None and wanted != length:
                    raise OSError(f"{length} bytes arrived, {wanted} were announced")
            if sha256 is not None and digest.hexdigest() != sha256:
                raise OSError("the checksum differs from the manifest's")
            if path.suffix == ".tar" and tail != bytes(2 * tarfile.BLOCKSIZE):
                raise OSError("the tar has no end-of-archive mark: it is truncated")
            fsync(temporary)
            temporary.replace(path)
        return path
