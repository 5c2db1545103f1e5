"""Files that are either the old ones or the new ones, never half of either."""

import os
import tempfile
from pathlib import Path

__all__ = ["write_bytes"]


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file through a temporary sibling that replaces it once it is on disk."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
