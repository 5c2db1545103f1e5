"""Recipes of transforms: a rebuilt transform has the same description and results, or there is no recipe."""

import json

import pytest
import timm
import torch
from PIL import Image
from torchvision import transforms
from torchvision.transforms import v2

from oodlit.backbones.loading import default_transform
from oodlit.backbones.recipe import made_from, recipe_of
from oodlit.base.value_description import describe
from oodlit.datamodules.benchmarks.digits import digits_transform
from oodlit.errors import InvalidArgumentError


def to_tensor(image: Image.Image) -> torch.Tensor:
    return torch.ones(3, 2, 2)


class Own:
    def __init__(self, size: int = 3) -> None:
        self.size = size


NORMALIZE = {"mean": [0.5, 0.4, 0.3], "std": (0.1, 0.2, 0.3)}
MADE = {
    "timm": default_transform(timm.create_model("test_vit", pretrained=False)),
    "digits": digits_transform(),
    "first": transforms.Compose([transforms.Resize((9, 7)), transforms.ToTensor(), transforms.Normalize(**NORMALIZE)]),
    "second": v2.Compose(
        [v2.ToImage(), v2.Resize(8), v2.ToDtype(torch.float32, scale=True), v2.Normalize(**NORMALIZE)]
    ),
    "function": to_tensor,
    "steps": transforms.Compose([transforms.CenterCrop(4), to_tensor]),
}


@pytest.mark.parametrize("name", MADE)
def test_made_again_it_is_the_same(name: str) -> None:
    transform = MADE[name]
    recipe = json.loads(json.dumps(recipe_of(transform)))
    assert recipe is not None
    again = made_from(recipe)
    assert describe(again) == describe(transform)
    image = Image.effect_noise((16, 12), 50).convert("RGB")
    assert torch.equal(again(image), transform(image))  # type: ignore[misc]


@pytest.mark.parametrize(
    "transform",
    [
        lambda image: image,
        Own(),
        transforms.Compose([transforms.ToTensor(), Own()]),
        transforms.Normalize(torch.zeros(99), torch.ones(99)),
        None,
    ],
)
def test_what_cannot_be_written_down_has_no_recipe(transform: object) -> None:
    assert recipe_of(transform) is None


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (
            {"class": "subprocess.Popen", "with": {"args": "ls"}},
            "expected a class of torchvision.transforms or timm.data.transforms, got",
        ),
        (
            {"enum": "os.system", "value": "ls"},
            "expected a class of torchvision.transforms or timm.data.transforms, got",
        ),
        ({"class": "torchvision.transforms.functional.resize", "with": {}}, "expected a class of"),
        ({"class": "torchvision.transforms.Resice", "with": {}}, "'torchvision.transforms.Resice' cannot be imported"),
        ({"function": "no_such_module.blur"}, "'no_such_module.blur' cannot be imported: .*to PYTHONPATH"),
    ],
)
def test_recipes_call_nothing_but_transforms(recipe: object, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        made_from(recipe)
