"""A file of text embeddings of words."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from oodlit.base.atomic import write_bytes
from oodlit.base.errors import InvalidArgumentError
from oodlit.base.json_files import loads


@dataclass(frozen=True, eq=False)
class WordEmbeddings:
    """Text embeddings of nouns and adjectives, with everything that they depend on.

    Args:
        embeddings: One row per word, shape (words, features).
        is_adjective: Whether each word is an adjective, shape (words,).
        words: The words, in the order of the rows.
        prompts: Templates of nouns and adjectives, by "nouns" and "adjectives".
        text_tower: Name of the text tower.
        text_sketch: What identifies the text tower, see `oodlit.backbones.clip.sketch_text`; empty = unknown.

    Raises:
        InvalidArgumentError: The shapes or types do not match, or an embedding contains NaN or infinite values.
    """

    embeddings: Float[Tensor, "words features"]
    is_adjective: Bool[Tensor, " words"]
    words: list[str]
    prompts: Mapping[str, list[str]] = field(default_factory=dict)
    text_tower: str = ""
    text_sketch: str = ""

    def __post_init__(self) -> None:
        """Check shapes, types, and values."""
        sizes = len(self.embeddings), len(self.is_adjective), len(self.words)
        if self.embeddings.ndim != 2 or len({*sizes}) > 1:
            raise InvalidArgumentError(
                "WordEmbeddings: expected one embedding and one adjective flag per word, got embeddings of shape"
                f" {tuple(self.embeddings.shape)}, {sizes[1]} flags, and {sizes[2]} words"
            )
        if self.is_adjective.dtype != torch.bool or not self.embeddings.dtype.is_floating_point:
            raise InvalidArgumentError(
                "WordEmbeddings: expected floating-point embeddings and Boolean flags, got"
                f" {self.embeddings.dtype} and {self.is_adjective.dtype}"
            )
        if not (is_finite := self.embeddings.isfinite().all(dim=1)).all():
            raise InvalidArgumentError(
                f"WordEmbeddings: the embedding of {self.words[int(is_finite.int().argmin())]!r} contains NaN or"
                " infinite values; write the file again with a text tower in float32"
            )

    def save(self, file: str | Path) -> None:
        """Write the file, either completely or not at all."""
        about = {name: getattr(self, name) for name in ("words", "prompts", "text_tower", "text_sketch")}
        tensors = {"embeddings": self.embeddings.contiguous(), "is_adjective": self.is_adjective}
        write_bytes(file, to_bytes(tensors, metadata={"description": json.dumps(about)}))

    @classmethod
    def load(cls, file: str | Path) -> "WordEmbeddings":
        """Read a file that `save` wrote.

        Raises:
            InvalidArgumentError: The file is missing or damaged, or is another file.
        """
        if not Path(file).is_file():
            raise InvalidArgumentError(
                f"expected a file of word embeddings, but {file} does not exist; create it with"
                " oodlit.backbones.negatives.write_negatives"
            )
        try:
            with safe_open(file, framework="pt") as opened:
                tensors = [opened.get_tensor(name) for name in ("embeddings", "is_adjective")]
                return cls(*tensors, **loads(opened.metadata()["description"]))
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise InvalidArgumentError(
                f"expected a file of word embeddings, got {file} ({type(error).__name__}: {error}); write it with"
                " oodlit.backbones.negatives.write_negatives"
            ) from error
