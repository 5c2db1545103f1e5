"""Settings of a module: its constructor arguments, stored under their own names."""

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from torch import nn

from oodlit.base.errors import InvalidArgumentError, UnknownNameError
from oodlit.detectors.contract.class_paths import construct, parameters_of, snake_case

C = TypeVar("C", bound="Configured")


class Configured(nn.Module):
    """Base class of modules with settings: the constructor arguments, which the fit freezes."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Published settings by name, see `preset`; nested detectors as {"class_path": ..., "init_args": ...}."""
    tuned_presets: ClassVar[frozenset[str]] = frozenset()
    """Presets that were tuned on OOD data; shown by `oodlit list detectors --verbose`."""

    _fitted: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """The constructor arguments, as stored.

        Raises:
            InvalidArgumentError: The constructor did not store an argument under its own name.
        """
        stored = self._stored
        if lost := [name for name in parameters_of(type(self)) if name not in stored]:
            raise InvalidArgumentError(
                f"{self!r}: the constructor argument {lost[0]!r} is not stored under its own name; write"
                f" self.{lost[0]} = {lost[0]}"
            )
        return stored

    @classmethod
    def preset(cls: type[C], name: str, **changes: Any) -> C:
        """Build the detector with published settings.

        Args:
            name: A key of `presets`.
            changes: Settings that override those of the preset.

        Raises:
            UnknownNameError: The preset does not exist.
            InvalidArgumentError: The constructor does not have such a setting.

        Example:
            >>> from oodlit.detectors import KNN
            >>> KNN.preset("1-percent")
            KNN(k=10, bank_size=12811)
        """
        if not cls.presets:
            raise UnknownNameError(f"unknown preset {name!r}: {cls.__name__} has no presets; write {cls.__name__}(...)")
        if name not in cls.presets:
            raise UnknownNameError.of(f"preset of {cls.__name__}", name, cls.presets)
        return construct(cls, {**cls.presets[name], **changes}, Configured)

    @classmethod
    def key(cls) -> str:
        """Return the name in tables and files: the class name in snake_case.

        Example:
            >>> from oodlit.detectors import ReAct
            >>> ReAct.key()
            'react'
        """
        return snake_case(cls.__name__)

    def extra_repr(self) -> str:
        """Return settings that differ from their default; `name=?` for a setting that was not stored."""
        stored = self._stored
        written = {n: repr(stored[n]) if n in stored else "?" for n in parameters_of(type(self))}
        return ", ".join(f"{n}={written[n]}" for n, v in parameters_of(type(self)).items() if written[n] != repr(v))

    def __repr__(self) -> str:
        """Return the detector as written in code."""
        return f"{type(self).__name__}({self.extra_repr()})"

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse to change a setting after the fit, since the fitted state depends on it."""
        if self._fitted and name in parameters_of(type(self)):
            raise AttributeError(f"{self!r} is fitted, so its setting {name!r} cannot change; create a new detector")
        super().__setattr__(name, value)

    @property
    def _stored(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in parameters_of(type(self)) if hasattr(self, name)}
