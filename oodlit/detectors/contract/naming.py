"""What a class of detectors is called in tables and files, and what its constructor takes."""

import re
from collections.abc import Mapping
from typing import Any

from oodlit.detectors.contract.class_paths import signature


def snake_case(name: str) -> str:
    """A class name as key.

    Example:
        >>> [snake_case(n) for n in ("MSP", "ViM", "KLMatching", "RelativeMahalanobis", "ReAct", "MCDropout")]
        ['msp', 'vim', 'kl_matching', 'relative_mahalanobis', 'react', 'mc_dropout']
    """
    acronym = re.sub(r"([A-Z])([A-Z][a-z]{2,})", r"\1_\2", name)
    return re.sub(r"([a-z]{2,})([A-Z])", r"\1_\2", acronym).lower()


def parameters_of(kind: type) -> Mapping[str, Any]:
    """Names and defaults of the constructor's parameters."""
    return {name: parameter.default for name, parameter in signature(kind).parameters.items()}
