"""Faster ways to the same outputs: channels-last memory layout and compilation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from oodlit.backbones.network_reader import NetworkReader
from oodlit.base.errors import InvalidArgumentError, RequirementError

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class Acceleration:
    """Options that a run switches on in a network, and off again at its end.

    Nothing changes before `start`: fingerprint and probe are those of the original network.

    Args:
        network: The network.
        reader: Passes images to the network; required if an option is set.
        channels_last: Whether images and convolutions use the memory layout (batch, height, width, channels).
        compile: A mode of `torch.compile`; True = "default", False = none.

    Raises:
        InvalidArgumentError: The mode does not exist.
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
            raise InvalidArgumentError(
                f"OODModule: expected compile to be True, False or one of {', '.join(MODES)}, got {compile!r}"
            )
        self._network, self._reader = network, reader
        self._channels_last, self._mode = channels_last, mode
        self._is_on = False

    @property
    def options(self) -> dict[str, Any]:
        """The options that are set, by name."""
        every = {"channels_last": self._channels_last, "compile": self._mode}
        return {name: value for name, value in every.items() if value}

    def with_options(self, **options: Any) -> "Acceleration":
        """Return a copy for the same network with some options changed."""
        return Acceleration(self._network, self._reader, **{**self.options, **options})

    def start(self) -> None:
        """Switch the options on."""
        if self._is_on or not self.options:
            return
        self._is_on = True
        self._lay_out(is_on=True)
        if self._mode:
            self._network.compile(mode=self._mode)
            assert self._reader is not None
            self._reader.copy_outputs = True  # a compiled network may overwrite its outputs in the next pass

    def stop(self) -> None:
        """Restore the network."""
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
        """Temporarily run the network without the options."""
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
        """Re-raise a failure caused by compile or channels_last, naming the option.

        Args:
            name: Name of the network.
            plain: Repeats the action with the original network.

        Raises:
            RequirementError: The original network does not fail.
        """
        try:
            yield
        except Exception as error:
            if not self._is_on or isinstance(error, torch.OutOfMemoryError) or not _works(plain):
                raise
            asked = " and ".join(f"{option}={value!r}" for option, value in self.options.items())
            said = " ".join(str(error).strip().partition("\n\n")[0].split())
            raise RequirementError(
                f"{name} fails with {asked} ({type(error).__name__}: {said}), but not without; omit"
                f" {' and '.join(self.options)}"
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
    except Exception:  # custom networks may raise anything; the first error is shown
        return False
    return True
