"""The linear class layer of a detection network, without its background."""

from torch import Tensor, nn

from oodlit.backbones.heads import gives, linear_map
from oodlit.errors import RequirementError
from oodlit.outputs import Head


class ClassLayer:
    """The layer that gives the class logits of a box, verified by the first boxes.

    Args:
        layer: The linear layer; None where there is none.
        background: Column of the background, such as 0 or -1; None = all columns are classes.
        problem: Why there is none, where that is known beforehand; None = the first boxes decide.
    """

    def __init__(self, layer: nn.Module | None, background: int | None, problem: str | None = None) -> None:
        self.layer, self.background = layer, background
        self.problem = "no linear layer gives its class logits" if layer is None and problem is None else problem

    def without_background(self, values: Tensor) -> Tensor:
        """Columns (or, of a weight matrix, rows along the last axis) of the classes alone."""
        if self.background is None:
            return values
        return values[..., 1:] if self.background == 0 else values[..., :-1]

    def verify(self, taken: Tensor, given: Tensor) -> None:
        """Decide, once, whether the layer gives these logits (background included) of these features."""
        if self.problem is None and len(taken):
            assert self.layer is not None  # else there is a problem
            self.problem = (
                "" if gives(self.layer, taken, given) else "its class logits are no linear function of the features"
            )

    @property
    def head(self) -> Head:
        """The layer with the weights of this moment.

        Raises:
            RequirementError: The logits do not follow from the features.
        """
        if self.problem or self.layer is None:
            raise RequirementError(f"no class layer: {self.problem}")
        weight, bias = linear_map(self.layer)
        return Head(self.without_background(weight.T).T, self.without_background(bias))
