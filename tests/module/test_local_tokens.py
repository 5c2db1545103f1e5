"""Local tokens of a small vision transformer with the names of open_clip, by plain matrices, and GL-MCM on them."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from oodlit.backbones.clip import LocalTokens, ZeroShotClassifier
from oodlit.detectors import GLMCM, MCM, fit
from oodlit.errors import InvalidArgumentError
from oodlit.module import OODModule

WIDTH, PATCHES, FEATURES = 8, 9, 5


class Block(nn.Module):
    """Attention and two linear layers, each added to its normalized input."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = nn.MultiheadAttention(WIDTH, 2, batch_first=batch_first)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.resblocks = nn.ModuleList(Block(batch_first=batch_first) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.batch_first else x.transpose(0, 1)
        for block in self.resblocks:
            x = block(x)
        return x if self.batch_first else x.transpose(0, 1)


class Tower(nn.Module):
    """A vision transformer for images of 6 x 6 pixels."""

    def __init__(self, *, batch_first: bool = True) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, WIDTH, 2, stride=2, bias=False)
        self.class_embedding = nn.Parameter(torch.zeros(WIDTH))
        self.transformer = Transformer(batch_first=batch_first)
        self.ln_post = nn.LayerNorm(WIDTH)
        self.proj = nn.Parameter(torch.zeros(WIDTH, FEATURES))
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)

    def forward(self, images: Tensor) -> Tensor:
        x = self.conv1(images).flatten(2).transpose(1, 2)
        x = self.transformer(torch.cat([self.class_embedding.expand(len(x), 1, -1), x], dim=1))
        return self.ln_post(x)[:, 0] @ self.proj


def images(n: int = 4) -> Tensor:
    return torch.randn(n, 3, 6, 6, generator=torch.Generator().manual_seed(1))


def by_hand(tower: Tower, x: Tensor) -> np.ndarray:
    """Tokens before the last block (batch, 1 + patches, width) to local tokens, in float64."""

    def array(parameter: Tensor) -> np.ndarray:
        return parameter.detach().double().numpy()

    def norm(u: np.ndarray, layer: nn.LayerNorm) -> np.ndarray:
        centered = u - u.mean()
        return centered / np.sqrt((centered**2).mean() + 1e-5) * array(layer.weight) + array(layer.bias)

    block, result = tower.transformer.resblocks[1], []
    weight, bias = array(block.attn.in_proj_weight)[2 * WIDTH :], array(block.attn.in_proj_bias)[2 * WIDTH :]
    out, first, last = block.attn.out_proj, block.mlp[0], block.mlp[2]
    for tokens in array(x):
        for token in tokens[1:]:
            u = token + array(out.weight) @ (weight @ norm(token, block.ln_1) + bias) + array(out.bias)
            inner = array(first.weight) @ norm(u, block.ln_2) + array(first.bias)
            inner = nn.functional.gelu(torch.from_numpy(inner)).numpy()
            u = u + array(last.weight) @ inner + array(last.bias)
            result.append(array(tower.proj).T @ norm(u, tower.ln_post))
    return np.array(result).reshape(len(x), PATCHES, FEATURES)


@pytest.mark.parametrize("batch_first", [True, False])
def test_local_tokens_by_plain_matrices(batch_first: bool) -> None:
    tower, seen = Tower(batch_first=batch_first), []
    tower.transformer.resblocks[1].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    with torch.no_grad():
        embedded, tokens = LocalTokens(tower)(images())
        torch.testing.assert_close(embedded, tower(images()), rtol=0, atol=0)
    before = seen[0] if batch_first else seen[0].transpose(0, 1)
    np.testing.assert_allclose(tokens, by_hand(tower, before), rtol=1e-4, atol=1e-5)


def module(tower: nn.Module) -> OODModule:
    concepts = torch.randn(4, FEATURES, generator=torch.Generator().manual_seed(2))
    return OODModule(ZeroShotClassifier(tower, concepts), head="classifier", transform=nn.Identity(), name="tiny CLIP")


def test_gl_mcm_reads_them_like_a_hidden_layer() -> None:
    whole, plain = module(LocalTokens(Tower())), module(Tower())
    facts = whole.probe(images(), layers=("local_tokens",))
    assert facts.channels == {"local_tokens": FEATURES}
    assert GLMCM().why_not(facts) == ""
    assert "local_tokens" in GLMCM().why_not(plain.probe(images(), layers=("local_tokens",)))
    detectors = [GLMCM(), GLMCM(weight=0.0), MCM()]
    fit(detectors, [], whole.head)
    with torch.no_grad():
        outputs = whole._reader.read(images(), ("local_tokens",))
        tokens = LocalTokens(Tower())(images())[1].double()
    assert outputs.hidden is not None
    torch.testing.assert_close(outputs.hidden["local_tokens"].double(), tokens.transpose(1, 2), rtol=1e-4, atol=1e-5)
    weight = whole.head.weight.double()
    cosines = nn.functional.normalize(tokens, dim=2) @ nn.functional.normalize(weight, dim=1).T
    local = cosines.softmax(dim=2).amax(dim=(1, 2))
    both, first, mcm = (detector.score(outputs) for detector in detectors)
    torch.testing.assert_close(both - first, local, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(first, mcm.exp())


def test_a_copy_with_fewer_classes_has_its_own_tokens() -> None:
    """Hooks of a pass do not stay, so that copies do not share them."""
    tower = LocalTokens(Tower())
    with torch.no_grad():
        expected = tower(images())
        copied = copy.deepcopy(tower)
        copied.tower.class_embedding.fill_(3.0)
        copied(images())
        for found, value in zip(tower(images()), expected, strict=True):
            torch.testing.assert_close(found, value, rtol=0, atol=0)


def test_other_towers_are_refused() -> None:
    no_projection = Tower()
    no_projection.proj = None
    for tower in (nn.Flatten(), no_projection):
        with pytest.raises(InvalidArgumentError, match=f"open_clip vision transformer, got {type(tower).__name__}"):
            LocalTokens(tower)
