"""Import modules from the current folder, but only those that a dotted path names.

The folder is not on `sys.path`: there, optional imports of installed packages would find and run any file in it.
"""

import importlib
import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType


class _Finder(MetaPathFinder):
    """Finds modules named by a dotted path, and the modules that they import; installed modules take precedence.

    Args:
        is_enabled: Whether dotted paths may name modules of the current folder.
        more: Folders to search after the current one.
        folders: Folder of each module that was found, by name.
    """

    def __init__(self) -> None:
        self.is_enabled = False
        self.more: list[str] = []
        self.folders: dict[str, str] = {}

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        folder = self.folders.get(_importer()) or self.folders.get(name)
        found = PathFinder.find_spec(name, [folder]) if folder and path is None else None
        if found is not None and folder is not None:
            self.folders[name] = folder
        return found


_FINDER = _Finder()


def _importer() -> str:
    """Return the top-level name of the module that contains the current import."""
    frame, is_inside = inspect.currentframe(), False
    while frame is not None and (frame := frame.f_back) is not None:
        name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if name in ("importlib", "_frozen_importlib"):
            is_inside = True
        elif is_inside:
            return name
    return ""


def search_current_folder(*more: Path) -> None:
    """Let dotted paths name modules of the current folder; installed modules take precedence.

    Args:
        more: Folders to search after the current one, until the next call.
    """
    _FINDER.is_enabled, _FINDER.more = True, [str(folder) for folder in more]
    if _FINDER not in sys.meta_path:
        sys.meta_path.append(_FINDER)


def import_module(name: str) -> ModuleType:
    """Import a module; after `search_current_folder`, also from the current folder if it is not installed.

    Raises:
        ImportError: It does not exist, or it fails.
    """
    top = name.partition(".")[0]
    if top not in sys.modules:
        _FINDER.folders.pop(top, None)  # the current folder may be another one now
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not _FINDER.is_enabled or error.name != top or top in _FINDER.folders:
            raise
    folders = [str(Path.cwd()), *_FINDER.more]
    importlib.invalidate_caches()
    for folder in folders:
        _FINDER.folders[top] = folder
        try:
            return importlib.import_module(name)
        except ImportError as error:
            if top not in sys.modules:
                del _FINDER.folders[top]
            if folder == folders[-1] or error.name != top:
                raise
    raise AssertionError("unreachable")


def folder_of(name: str) -> list[str]:
    """Return the folder of a module that a dotted path imported from the current folder; empty for other modules."""
    folder = _FINDER.folders.get(name.partition(".")[0])
    return [folder] if folder else []


@contextmanager
def shared_with_processes() -> Iterator[list[str]]:
    """Let new processes import the same modules of the current folder: they may receive objects of these modules.

    Yields:
        Their folders, which are at the end of `sys.path` meanwhile.
    """
    before, folders = list(sys.path), sorted(set(_FINDER.folders.values()) - set(sys.path))
    sys.path.extend(folders)
    try:
        yield folders
    finally:
        sys.path[:] = before
