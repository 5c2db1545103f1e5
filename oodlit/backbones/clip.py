"""Zero-shot classifiers from an image tower and a text tower, such as CLIP's.

The class of an image is the nearest text embedding. As a network with a linear last layer, it is a regular backbone:
its features are the unit image embeddings, and its head contains the text embeddings. `Cosine(concepts="head")` is then
zero-shot Cosine, and `MCM`, `GLMCM`, `NegLabel`, and `CSP` apply.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from oodlit.backbones.capture import capture
from oodlit.backbones.hub import check_hub
from oodlit.backbones.returned import as_vectors
from oodlit.base.errors import InvalidArgumentError, MissingExtraError
from oodlit.base.fingerprint import sketch
from oodlit.base.outputs import unit

TEMPLATES = ("a photo of a {class}",)
"""The prompt of the published CLIP detectors."""
FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
"""Names of published weights, unless the tag specifies another."""

RETURN_EMBEDDINGS = "the tower must return a tensor with one embedding per input"


class ZeroShotClassifier(nn.Module):
    """logits = scale * cos(image embedding, text embedding of the class), as a network with a linear last layer.

    Use it as `OODModule(classifier, head="classifier", transform=...)`.

    Args:
        image_tower: Maps images to embeddings (batch, features), normalized or not. If it returns a pair, the second is
            the local tokens (batch, tokens, features), which detectors read as the hidden layer "local_tokens".
        concepts: One embedding per class, (classes, features), normalized here.
        scale: Positive factor of the cosines, which affects softmax scores; default 100, as in CLIP.
        text_tower: The text tower of the concepts, which maps prompts to embeddings. Its embedding of a fixed prompt
            becomes part of the fingerprint, so that `NegLabel` and `CSP` refuse negatives of another text tower. None
            (default) = unknown.

    Raises:
        InvalidArgumentError: Shape or scale is out of range, a concept is zero or not finite, or, in the first forward
            pass, embeddings of the image tower differ in width.

    Example:
        >>> network = ZeroShotClassifier(nn.Flatten(), torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
        >>> network(torch.tensor([[[[3.0, 4.0]]]])).round().tolist()
        [[60.0, 80.0]]

    References:
        A. Radford et al., Learning Transferable Visual Models From Natural Language Supervision, ICML 2021.
    """

    def __init__(
        self,
        image_tower: nn.Module,
        concepts: Float[Tensor, "classes features"],
        *,
        scale: float = 100.0,
        text_tower: Callable[[list[str]], Tensor] | None = None,
    ) -> None:
        """Put the text embeddings into a linear layer."""
        super().__init__()
        if concepts.ndim != 2 or 0 in concepts.shape:
            raise InvalidArgumentError(
                f"ZeroShotClassifier: expected concepts of shape (classes, features), got {tuple(concepts.shape)}"
            )
        # zero or NaN: the cosine is undefined
        if useless := [c for c, row in enumerate(unit(concepts.float())) if not float(row.abs().amax()) > 0]:
            raise InvalidArgumentError(
                "ZeroShotClassifier: expected a finite, nonzero concept (text embedding) for every class, got a zero,"
                f" NaN or infinite concept for {len(useless)} of {len(concepts)} classes (first class indices:"
                f" {', '.join(map(str, useless[:3]))})"
            )
        if not 0 < scale < float("inf"):
            raise InvalidArgumentError(f"ZeroShotClassifier: expected scale to be positive and finite, got {scale}")
        self.image_tower = image_tower
        self.text_sketch = sketch_text(text_tower) if text_tower else ""
        self.classifier = nn.Linear(concepts.shape[1], concepts.shape[0], bias=False)
        self.local_tokens = nn.Identity()
        with torch.no_grad():
            self.classifier.weight.copy_(scale * unit(concepts.float()))
        self._checked = False

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        """Return the logits of transformed images."""
        embedded = self.image_tower(images)
        if isinstance(embedded, tuple):
            embedded, tokens = embedded
            self.local_tokens(tokens)
        if not self._checked:
            embedded = as_vectors(embedded, len(images), "ZeroShotClassifier: image tower", way_out=RETURN_EMBEDDINGS)
            width = self.classifier.in_features
            if embedded.shape[1] != width:
                raise InvalidArgumentError(
                    f"ZeroShotClassifier: the concepts have {width} features, but the image tower returns"
                    f" {embedded.shape[1]} per image; the concepts and the image tower must come from one model"
                )
            self._checked = True
        logits: Tensor = self.classifier(unit(embedded))
        return logits


class LocalTokens(nn.Module):
    """An image tower that also returns local tokens: the patches in the space of the text embeddings.

    In the last block, tokens do not attend to each other. Only the path of the values is left: u = x + out(V(ln_1(x))),
    u + mlp(ln_2(u)), then the last norm and the projection, for all tokens but the class token.

    Args:
        tower: A vision transformer of open_clip, or one with the same names of its parts.

    Raises:
        InvalidArgumentError: A part is missing, or the last block has another attention layer.

    References:
        C. Zhou et al., Extract Free Dense Labels from CLIP, ECCV 2022; A. Miyai et al., GL-MCM, IJCV 2025.
    """

    def __init__(self, tower: nn.Module) -> None:
        """Find the last block."""
        super().__init__()
        blocks: Any = getattr(getattr(tower, "transformer", None), "resblocks", ())
        attention = getattr(blocks[-1], "attn", None) if len(blocks) else None
        has_parts = all(getattr(tower, part, None) is not None for part in ("ln_post", "proj"))
        if not (isinstance(attention, nn.MultiheadAttention) and has_parts):
            raise InvalidArgumentError(
                f"LocalTokens: expected the image tower of an open_clip vision transformer, got {type(tower).__name__}"
            )
        self.tower, self._last = tower, f"transformer.resblocks.{len(blocks) - 1}"

    def forward(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> tuple[Float[Tensor, "batch features"], Float[Tensor, "batch tokens features"]]:
        """Return embeddings and local tokens of transformed images."""
        with capture(self.tower, (self._last,), ()) as kept:
            embedded = self.tower(images)
        tower: Any = self.tower
        block: Any = tower.get_submodule(self._last)
        x, attention = kept[self._last], block.attn
        _, _, weight = attention.in_proj_weight.chunk(3)
        bias = None if attention.in_proj_bias is None else attention.in_proj_bias.chunk(3)[2]
        u = x + attention.out_proj(nn.functional.linear(block.ln_1(x), weight, bias))
        u = u + block.mlp(block.ln_2(u))
        u = u if attention.batch_first else u.transpose(0, 1)
        return embedded, tower.ln_post(u)[:, 1:] @ tower.proj


def class_prompts(names: Sequence[str], template: str = TEMPLATES[0]) -> list[str]:
    """Build one prompt per class.

    Args:
        names: Names of the classes in plain language.
        template: Text with the placeholder {class}.

    Raises:
        InvalidArgumentError: There are no names, a name is empty, or the template has no placeholder.

    Example:
        >>> class_prompts(["tench", "goldfish"])
        ['a photo of a tench', 'a photo of a goldfish']
    """
    if not names or not all(name.strip() for name in names):
        raise InvalidArgumentError("class_prompts: expected at least one class name, and no empty names")
    if "{class}" not in template:
        raise InvalidArgumentError(f"class_prompts: expected a template with {{class}}, got {template!r}")
    return [template.replace("{class}", name) for name in names]


def text_concepts(
    names: Sequence[str],
    text_tower: Callable[[list[str]], Tensor],
    *,
    templates: Sequence[str] = TEMPLATES,
    batch_size: int = 256,
) -> Float[Tensor, "classes features"]:
    """Compute the unit text embedding of every class: the normalized mean of the unit embeddings of its prompts.

    Args:
        names: Names of the classes.
        text_tower: Maps a list of prompts to embeddings (prompts, features).
        templates: Prompts with the placeholder {class}, at least one.
        batch_size: Prompts per call of the tower.

    Raises:
        InvalidArgumentError: Names or templates are missing, or the tower does not return one row per prompt.

    Example:
        >>> lengths = lambda prompts: torch.tensor([[float(len(p)), 1.0] for p in prompts])
        >>> text_concepts(["cat", "horse"], lengths).shape
        torch.Size([2, 2])
    """
    if not templates:
        raise InvalidArgumentError("text_concepts: expected at least one template, got none")
    total = torch.zeros(())
    with torch.no_grad():
        for template in templates:
            prompts = class_prompts(names, template)
            chunks = [prompts[i : i + batch_size] for i in range(0, len(prompts), batch_size)]
            name = "text_concepts: text tower"
            parts = [as_vectors(text_tower(c), len(c), name, way_out=RETURN_EMBEDDINGS) for c in chunks]
            total = total + unit(torch.cat(parts).float())
    return unit(total)


def sketch_text(text_tower: Callable[[list[str]], Tensor]) -> str:
    """Identify a text tower by its embedding of a fixed prompt, see `oodlit.base.fingerprint`."""
    return sketch(text_concepts(["thing"], text_tower))


def from_open_clip(
    model: str,
    names: Sequence[str],
    *,
    pretrained: str | None = None,
    templates: Sequence[str] = TEMPLATES,
    local_tokens: bool = False,
) -> tuple[ZeroShotClassifier, Callable[[Any], Tensor]]:
    """Build a zero-shot classifier from an open_clip model (extra `clip`).

    Args:
        model: Name of the architecture, such as "ViT-B-16".
        names: Names of the classes.
        pretrained: Tag of published weights or path of a checkpoint; None = random weights.
        templates: Prompts with the placeholder {class}.
        local_tokens: Whether to compute local tokens as well, which `GLMCM` reads; requires a vision transformer.

    Returns:
        The network and its image transform.

    Raises:
        MissingExtraError: open_clip is not installed.
        InvalidArgumentError: The weights are not on this machine and the hub cannot be reached, or the model has no
            local tokens.
    """
    network, transform, text_tower = _open_clip(model, pretrained, "cpu")
    concepts = text_concepts(names, text_tower, templates=templates)
    tower = LocalTokens(network.visual) if local_tokens else network.visual
    scale = float(network.logit_scale.detach().exp())
    return ZeroShotClassifier(tower, concepts, scale=scale, text_tower=text_tower), transform


def open_clip_text_tower(
    model: str, *, pretrained: str | None = None, device: str = "cpu"
) -> Callable[[list[str]], Tensor]:
    """Return the text tower of an open_clip model (extra `clip`), for `write_negatives` and `text_concepts`.

    Args:
        model: Name of the architecture, such as "ViT-B-16".
        pretrained: Tag of published weights or path of a checkpoint; None = random weights.
        device: Device to compute on.

    Raises:
        MissingExtraError: open_clip is not installed.
        InvalidArgumentError: The weights are not on this machine and the hub cannot be reached.
    """
    return _open_clip(model, pretrained, device)[2]


def _open_clip(model: str, pretrained: str | None, device: str) -> tuple[Any, Any, Callable[[list[str]], Tensor]]:
    """Return an open_clip model, its image transform and its text tower."""
    try:
        import open_clip  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise MissingExtraError.of("a CLIP backbone", "clip") from error
    published = (open_clip.get_pretrained_cfg(model, pretrained) if pretrained else {}).get("hf_hub")
    if published:  # "owner/name/file", or "owner/name/" for the default names
        repository, _, file = published.rpartition("/")
        files = [file, f"{file.rpartition('.')[0]}.safetensors"] if file else FILES
        way_out = "pass pretrained=PATH of a local checkpoint, or pretrained=None for random weights"
        check_hub(repository, files, what=f"open_clip model {model!r}, pretrained={pretrained!r}", way_out=way_out)
    network, _, transform = open_clip.create_model_and_transforms(model, pretrained=pretrained, device=device)
    network.eval()
    tokenizer = open_clip.get_tokenizer(model)
    return network, transform, lambda prompts: network.encode_text(tokenizer(prompts).to(device))
