"""Inputs and outputs of layers, collected during one forward pass."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["capture"]


@contextmanager
def capture(network: nn.Module, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Iterator[dict[str, Tensor]]:
    """Collect, during one forward pass, the inputs and outputs of layers by name; the network is left as it was."""
    kept: dict[str, Tensor] = {}
    handles = []
    # A compiled network would freeze the first hook into its graph: the graph is broken where a hook is called.
    is_compiled = any(getattr(network, name, None) is not None for name in ("_orig_mod", "_compiled_call_impl"))
    guard: Callable[[Any], Any] = torch.compiler.disable if is_compiled else _as_it_is
    for name in inputs:

        def keep_input(_m: nn.Module, args: tuple[Tensor, ...], named: dict[str, Tensor], name: str = name) -> None:
            kept[name] = args[0] if args else next(iter(named.values()))

        handles.append(network.get_submodule(name).register_forward_pre_hook(guard(keep_input), with_kwargs=True))
    for name in outputs:

        def keep_output(_module: nn.Module, _args: object, output: Tensor, name: str = name) -> None:
            kept[f"output:{name}"] = output

        handles.append(network.get_submodule(name).register_forward_hook(guard(keep_output)))
    try:
        yield kept
    finally:
        for handle in handles:
            handle.remove()


def _as_it_is(hook: Any) -> Any:
    return hook
