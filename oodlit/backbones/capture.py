"""Capture inputs and outputs of layers during one forward pass, by value."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Call = tuple[str, Tensor, Tensor]
"""One call of a module: its name, its input vectors and its output vectors."""


@contextmanager
def capture(network: nn.Module, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Collect inputs and outputs of layers by name during one forward pass, leaving the network unchanged.

    Tensors are copied, since later in-place layers, such as `ReLU(inplace=True)`, overwrite their input.
    """
    kept: dict[str, Any] = {}
    # A compiled network would freeze the first hook into its graph: break the graph where a hook is called.
    is_compiled = any(getattr(network, name, None) is not None for name in ("_orig_mod", "_compiled_call_impl"))
    guard: Callable[[Any], Any] = torch.compiler.disable if is_compiled else lambda hook: hook
    with ExitStack() as hooks:
        for name in inputs:

            def keep_input(_m: nn.Module, args: tuple[Any, ...], named: dict[str, Any], name: str = name) -> None:
                kept[name] = _copy(args[0] if args else next(iter(named.values()), None))

            layer = network.get_submodule(name)
            hooks.enter_context(layer.register_forward_pre_hook(guard(keep_input), with_kwargs=True))
        for name in outputs:

            def keep_output(_module: nn.Module, _args: object, output: object, name: str = name) -> None:
                kept[f"output:{name}"] = _copy(output)

            hooks.enter_context(network.get_submodule(name).register_forward_hook(guard(keep_output)))
        yield kept


@contextmanager
def survey(network: nn.Module) -> Iterator[list[Call]]:
    """Collect every call of a submodule that maps one vector per image to another, during one forward pass.

    Inner modules come before the modules that contain them. A 1x1 map counts as a vector.
    """
    calls: list[Call] = []
    pending: dict[str, Tensor | None] = {}
    with ExitStack() as hooks:
        for name, module in network.named_modules():
            if not name:
                continue

            def before(_m: nn.Module, args: tuple[Any, ...], named: dict[str, Any], name: str = name) -> None:
                pending[name] = _vectors(args[0] if args else next(iter(named.values()), None))

            def after(_m: nn.Module, _args: object, output: object, name: str = name) -> None:
                given, gave = pending.pop(name, None), _vectors(output)
                if given is not None and gave is not None:
                    calls.append((name, given, gave))

            hooks.enter_context(module.register_forward_pre_hook(before, with_kwargs=True))
            hooks.enter_context(module.register_forward_hook(after))
        yield calls


def _vectors(value: object) -> Tensor | None:
    """Return a copy as (batch, size); None for anything else."""
    if isinstance(value, Tensor) and value.ndim >= 2 and len(value) and value[0].numel() == value.shape[1]:
        return value.detach().flatten(1).clone()
    return None


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
