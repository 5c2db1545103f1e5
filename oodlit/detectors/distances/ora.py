"""ORA: angles between an image and the decision boundaries."""

from typing import final

import torch

from oodlit.base.outputs import Head, Outputs, Scores
from oodlit.detectors.contract import Detector, Reference
from oodlit.detectors.formulas.boundaries import inverse_distances, unmasked_gaps
from oodlit.detectors.statistics import CorrectMeans, Statistics


@final
class ORA(Detector):
    """S = max over c != y of angle(x - m, x_c - m) / pi: y the prediction, x_c the foot of x on the boundary y, c.

    m is the mean of the class means of the training images, and x_c = x - (z_y - z_c)(w_y - w_c) / |w_y - w_c|^2. The
    angle follows from the distance to the boundary and from the logits of m, without computing x_c. Classes with
    equal weights have no boundary and are left out, with a note; so are masked classes, without one. Memory: C x C
    doubles, as for fDBD.

    Example:
        >>> import torch
        >>> from oodlit.detectors import fit
        >>> head, detector = Head(torch.eye(2)), ORA()
        >>> train = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])  # m = 0
        >>> fit([detector], [Outputs(head(train), train, torch.tensor([0, 1]))], head)
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.9]])  # 45 degrees, and 3 degrees
        >>> [round(180 * s, 1) for s in detector.score(Outputs(head(x), x)).tolist()]
        [45.0, 3.0]
    """

    needs = frozenset({"logits", "features", "head"})
    statistics = (CorrectMeans,)
    invariances = frozenset({"feature_rotation", "feature_scale", "class_permutation"})
    reference = Reference(
        "Out-of-Distribution Detection with Relative Angles",
        "B. Demirel",
        "NeurIPS",
        2025,
        "https://arxiv.org/abs/2410.04525",
        "the angle is computed from its tangent, which is precise for small angles, instead of its cosine",
    )

    def _fit(self, statistics: Statistics, head: Head) -> None:
        facts = statistics[CorrectMeans]
        present = facts.class_counts > 0
        self.note_classes(~present, "have no training images and are left out of the mean of the class means")
        mean = facts.class_means[present].mean(dim=0)
        of_mean = head.weight.double() @ mean.to(head.weight.device) + head.offset.double()
        finite = of_mean.isfinite()  # a masked class has a bias of minus infinity
        self.keep(
            inverse_distances=inverse_distances(self, statistics, head),
            mean=mean,
            logits_of_mean=of_mean.where(finite, torch.zeros_like(of_mean)),
        )

    def _score(self, outputs: Outputs) -> Scores:
        best, inverse = outputs.predictions, self.inverse_distances[outputs.predictions]
        gaps = -unmasked_gaps(outputs).double()
        # With a = x - m and the unit normal n of a boundary at distance s: x_c - m = a - s n.
        length = (outputs.require("features").double() - self.mean).square().sum(dim=1, keepdim=True)
        to_boundary = gaps * inverse
        along = (gaps - (self.logits_of_mean[best][:, None] - self.logits_of_mean)) * inverse
        across = to_boundary * (length - along.square()).clamp_(min=0).sqrt_()
        cotangents = (length - to_boundary * along) / across.clamp_(min=torch.finfo(across.dtype).tiny)
        smallest = cotangents.amin(dim=1)
        return torch.atan2(torch.ones_like(smallest), smallest) / torch.pi
