"""Faster ways to the same outputs: another layout of images in memory, and compilation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from oodlit.backbones.network_reader import NetworkReader
from oodlit.errors import InvalidArgumentError, RequirementError

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class Acceleration:
    """What a run switches on in a network, and off again when it is over.

    Nothing is changed before `start`: fingerprint and probe are those of the network as it was given.

    Args:
        network: The network.
        reader: Gives it its images; needed where anything is asked for.
        channels_last: Images and convolutions as (batch, height, width, channels) in memory.
        compile: A mode of `torch.compile`; True = "default", False = none.

    Raises:
        InvalidArgumentError: There is no such mode.
    """

    def __init__(
        self,
        network: nn.Module,
        reader: NetworkReader | None = None,
        *,
        channels_last: bool = False,
        compile: bool | str = False,
    ) -> None:
        mode = "default" if compile is True else compile or ""
        if mode and mode not in MODES:
            raise InvalidArgumentError(f"OODModule: compile={compile!r}; True, False or one of {', '.join(MODES)}")
        self._network, self._reader = network, reader
        self._channels_last, self._mode = channels_last, mode
        self._is_on = False

    @property
    def options(self) -> dict[str, Any]:
        """What is asked for, by name; empty if nothing is."""
        return {
            **({"channels_last": True} if self._channels_last else {}),
            **({"compile": self._mode} if self._mode else {}),
        }

    def with_options(self, **options: Any) -> "Acceleration":
        """The same for the same network, with some options set otherwise."""
        return Acceleration(self._network, self._reader, **{**self.options, **options})

    def start(self) -> None:
        """Switch on what was asked for."""
        if self._is_on or not self.options:
            return
        self._is_on = True
        self._lay_out(is_on=True)
        if self._mode:
            self._network.compile(mode=self._mode)
            assert self._reader is not None
            self._reader.copy_outputs = True  # a compiled network may write its next outputs over them

    def stop(self) -> None:
        """Leave the network as it was."""
        if not self._is_on:
            return
        self._is_on = False
        self._lay_out(is_on=False)
        if self._mode:
            self._network._compiled_call_impl = None
            assert self._reader is not None
            self._reader.copy_outputs = False

    @contextmanager
    def eager(self) -> Iterator[None]:
        """The network as it was given, for a while."""
        if not self._is_on:
            yield
            return
        self._lay_out(is_on=False)
        try:
            with torch.compiler.set_stance("force_eager"):
                yield
        finally:
            self._lay_out(is_on=True)

    @contextmanager
    def explain_failure(self, name: str, plain: Callable[[], object]) -> Iterator[None]:
        """Say so where the network fails by what was switched on: without a compiler, or for the layout of its images.

        Args:
            name: Of the network.
            plain: Does the same with the network as it was given.

        Raises:
            RequirementError: The network as it was given does not fail.
        """
        try:
            yield
        except Exception as error:
            if not self._is_on or isinstance(error, torch.OutOfMemoryError) or not _works(plain):
                raise
            asked = ", ".join(f"{option}={value}" for option, value in self.options.items())
            said = " ".join(str(error).strip().partition("\n\n")[0].split())
            raise RequirementError(
                f"{name} with {asked} fails, and does not without: {type(error).__name__}: {said}; leave the option out"
            ) from error

    def _lay_out(self, *, is_on: bool) -> None:
        if self._channels_last:
            layout = torch.channels_last if is_on else torch.contiguous_format
            self._network.to(memory_format=layout)
            assert self._reader is not None
            self._reader.memory_format = layout if is_on else torch.preserve_format


def _works(action: Callable[[], object]) -> bool:
    try:
        action()
    except Exception:  # a user's network fails with anything; what it said first is shown
        return False
    return True
