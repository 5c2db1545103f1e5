"""Download remote shards to a local cache, with checks and retries.

Downloads are checked while they arrive. Checking the copy as well detects later damage, and copies of shards that were
rebuilt under the same name.
"""

import contextlib
import hashlib
import os
import re
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import fsspec

from oodlit.base.atomic import fsync, lock, temporary_file
from oodlit.base.checks import check_ints, check_positive
from oodlit.base.errors import DataError, InvalidArgumentError, MissingExtraError
from oodlit.base.retry import retried
from oodlit.base.secrets import mask_address, mask_text
from oodlit.datamodules.shards.manifest import MAX_MANIFEST_BYTES

PROTOCOLS = ("http", "https", "s3", "gs", "gcs", "hf", "az", "abfs")
"""Supported URL schemes. "pipe:" and chaining with "::" are excluded, so that no name can start a program."""

_CHUNK = 2**20
_T = TypeVar("_T")


def is_url(path: str) -> bool:
    """Whether `path` is a URL.

    Raises:
        InvalidArgumentError: Its scheme is not supported.

    Example:
        >>> is_url("https://example.org/a-000000.tar"), is_url("shards/a-000000.tar")
        (True, False)
    """
    scheme, separator, _ = path.partition("://")
    if path.startswith("pipe:") or "::" in path or (separator and scheme not in PROTOCOLS):
        raise InvalidArgumentError(
            f"{mask_address(path)!r}: expected a local path, or a URL with one of the schemes {', '.join(PROTOCOLS)};"
            " pipes and chained URLs (with '::') are not supported"
        )
    return bool(separator)


def split_url(url: str) -> tuple[str, str, str]:
    """Split a URL into folder, file name, and query ("?..." or "").

    Example:
        >>> split_url("https://example.org/set/a.tar?token=b/c")
        ('https://example.org/set', 'a.tar', '?token=b/c')
    """
    path = re.split(r"[?#]", url, maxsplit=1)[0]
    folder, _, name = path.rstrip("/").rpartition("/")
    return folder, name, url[len(path) :]


def _info(system: Any, name: str) -> dict[str, Any]:
    """Facts about a file. fsspec reports every HTTP failure as a missing file; here each has its own error."""
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
        raise OSError(reason) from cause  # such as a busy server: retried


@dataclass(frozen=True)
class Cache:
    """Local copies of remote files, and retries of failed reads, also of local shards.

    Args:
        folder: Folder of the copies. None (default) = `$OODLIT_CACHE`, else `~/.cache/oodlit`. Files are never removed.
        attempts: Attempts per file, at least 1. Default 5.
        backoff_s: Pause in seconds after the first failure, doubled after each further one. Default 0.5.
        timeout_s: Seconds without data after which an HTTP attempt fails. Default 60.
        storage_options: Options for fsspec (credentials, endpoint), as pairs of name and value. They are not printed
            with this object, and secrets among them are masked in the record of a run.
        max_bytes: Largest file to download, in bytes. Default 64 GiB. Manifests have at most 64 MiB.

    Raises:
        InvalidArgumentError: A number is out of range.
    """

    folder: str | Path | None = None
    attempts: int = 5
    backoff_s: float = 0.5
    timeout_s: float = 60.0
    storage_options: tuple[tuple[str, Any], ...] = field(default=(), repr=False)
    max_bytes: int = 2**36

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_ints("Cache", attempts=self.attempts, max_bytes=self.max_bytes)
        check_positive("Cache", backoff_s=self.backoff_s, or_zero=True)

    def path(self, url: str) -> Path:
        """Path of the copy of `url`, which may not exist yet."""
        home = self.folder or os.environ.get("OODLIT_CACHE") or Path.home() / ".cache" / "oodlit"
        return Path(home) / hashlib.sha256(url.encode()).hexdigest()[:16] / split_url(url)[1]

    def retry(self, action: Callable[[], _T], what: str) -> _T:
        """Run `action`, and retry it after an `OSError` or a network failure.

        Errors call it `what`; secrets in the address of a file are masked.

        Raises:
            DataError: It failed `attempts` times, or the file does not exist or may not be read.
            MissingExtraError: fsspec requires another package for this kind of URL.
        """
        lasting, what = (FileNotFoundError, PermissionError, ImportError, DataError), mask_text(what)
        try:
            return retried(action, attempts=self.attempts, backoff_s=self.backoff_s, lasting=lasting)
        except DataError:  # too large
            raise
        except FileNotFoundError as error:
            raise DataError(f"{what} does not exist; check the path or URL, or restore the file") from _masked(error)
        except PermissionError as error:
            raise DataError(f"{what}: permission denied ({mask_text(str(error))})") from _masked(error)
        except ImportError as error:
            raise MissingExtraError(f"{what}: {error}") from error
        except Exception as error:  # each of fsspec's file systems has its own errors
            reason = mask_text(str(error)) or type(error).__name__
            raise DataError(f"{what}: reading failed after {self.attempts} attempts ({reason})") from _masked(error)

    def fetch_manifest(self, url: str) -> bytes:
        """Download a manifest again and return its content.

        Raises:
            DataError: All attempts failed, or it has more than 64 MiB.
        """
        return replace(self, max_bytes=min(self.max_bytes, MAX_MANIFEST_BYTES)).fetch(url, fresh=True).read_bytes()

    def fetch(self, url: str, *, size: int | None = None, sha256: str | None = None, fresh: bool = False) -> Path:
        """Return the local copy of `url`; download it if it does not exist, or always if `fresh`.

        A download must have the announced length and, if the manifest has them, the right size and checksum; a tar must
        also have its end-of-archive marker. Otherwise it is retried. Existing copies must meet the same rules: their
        checksum is computed when a process first opens them, which takes 0.5 s per gigabyte on processors with SHA
        instructions, and 2 to 3 s on others. Copies with another checksum are downloaded again.

        Raises:
            DataError: All attempts failed, or an outdated copy cannot be replaced.
        """
        path = self.path(url)

        def is_valid() -> bool:
            return not fresh and _is_whole(path, size) and (sha256 is None or _has_checksum(path, sha256))

        if is_valid():
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:  # readers of one machine share one download
            try:
                stack.enter_context(lock(path.with_name(f".{path.name}.lock")))
                is_writable = True
            except OSError:
                is_writable = False
            if is_valid():  # another reader has downloaded it
                return path
            what = mask_address(url)
            if not fresh and _is_whole(path, size):
                what += f" (the copy {path} is damaged or outdated: the manifest has another checksum)"
            if not is_writable:
                raise DataError(f"{what}: cannot write to {path.parent}; pass Cache(folder=...) with another folder")
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
            known = [number for number in (size, announced) if number is not None]
            if known and max(known) > self.max_bytes:
                raise self._too_large(url, f"{max(known):,}")
            with system.open(name, "rb", cache_type="none", block_size=0) as source, temporary.open("wb") as file:
                while chunk := source.read(_CHUNK):
                    if file.tell() + len(chunk) > self.max_bytes:
                        raise self._too_large(url, "more")
                    if known and file.tell() + len(chunk) > min(known):  # such as a body without end
                        raise OSError(f"expected {min(known)} bytes, got more")
                    file.write(chunk)
                    digest.update(chunk)
                    tail = (tail + chunk)[-2 * tarfile.BLOCKSIZE :]
                length = file.tell()
            for wanted in (announced, size):
                if wanted is not None and wanted != length:
                    raise OSError(f"expected {wanted} bytes, got {length}")
            if sha256 is not None and digest.hexdigest() != sha256:
                raise OSError("the checksum differs from that in the manifest")
            if path.suffix == ".tar" and tail != bytes(2 * tarfile.BLOCKSIZE):
                raise OSError("the tar is truncated: it has no end-of-archive marker")
            fsync(temporary)
            temporary.replace(path)
        return path

    def _too_large(self, url: str, found: str) -> DataError:
        limit = "the limit for manifests" if self.max_bytes == MAX_MANIFEST_BYTES else "set by Cache(max_bytes=...)"
        return DataError(f"{mask_address(url)}: expected at most {self.max_bytes:,} bytes ({limit}), got {found}")


def _masked(error: Exception) -> Exception:
    """The cause of an error as a traceback may show it: without secrets in addresses."""
    masked = mask_text(str(error))
    chain = [error]
    while (following := chain[-1].__cause__ or chain[-1].__context__) and isinstance(following, Exception):
        chain.append(following)
    if all(mask_text(str(one)) == str(one) for one in chain):
        return error
    for kind in (FileNotFoundError, PermissionError):
        if isinstance(error, kind):
            return kind(masked)
    return OSError(f"{type(error).__name__}: {masked}")


def _is_whole(path: Path, size: int | None) -> bool:
    """Whether a complete copy exists: of the right length or, if the length is unknown, a tar with an end marker."""
    if not path.is_file():
        return False
    if size is not None or path.suffix != ".tar":
        return size in (None, path.stat().st_size)
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2 * tarfile.BLOCKSIZE))
        return file.read() == bytes(2 * tarfile.BLOCKSIZE)


def _has_checksum(path: Path, sha256: str) -> bool:
    """Whether a copy has this checksum. It is computed once per process, and again if the file has changed."""
    state = path.stat()  # no program can set st_ctime back
    return _checksum(path, state.st_size, state.st_ino, state.st_mtime_ns, state.st_ctime_ns) == sha256


@lru_cache(maxsize=100_000)
def _checksum(path: Path, *state: int) -> str:
    with path.open("rb") as file:
        return hexdigest(file)


def hexdigest(file: BinaryIO, algorithm: str = "sha256") -> str:
    """Hexadecimal checksum from the current position to the end of the file."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()
