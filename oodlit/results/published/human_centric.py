"""Detection error rates of 'Rethinking Out-of-Distribution Detection From a Human-Centric Perspective'."""

from oodlit.results.published.protocol import Protocol
from oodlit.results.published.table import PublishedTable

_SETS = ("textures", "inaturalist", "places", "sun", "imagenet_v2", "imagenet_r", "imagenet_c", "imagenet_val")

HUMAN_CENTRIC = PublishedTable(
    name="human_centric",
    source="Y. Zhu et al., Rethinking Out-of-Distribution Detection From a Human-Centric Perspective, IJCV, 2024",
    url="https://arxiv.org/abs/2211.16778",
    tables="tables 1 and 2: 8 classifiers, 9 detectors, 8 data sets and their average, as printed. 18 averages,"
    " especially of KNN, differ from the mean of the printed values. The weights of the classifiers are not stated",
    rule="DER of each data set alone, at the threshold that keeps 95 or 99 % of the correctly classified training"
    " images; OOD images count as misclassified",
    file="human_centric.csv",
    settings=dict.fromkeys(("DICE", "Energy", "KNN", "ReAct", "ViM"), "the table does not state the settings")
    | {"Mahalanobis": {"power": 0.0}},
    # Textures and ImageNet-C are used whole and in part; which it was, is not stated.
    protocol=Protocol(
        "images",
        sets={"average": _SETS},
        images={"imagenet_val": 50_000, "imagenet_v2": 10_000, "imagenet_r": 30_000}
        | dict.fromkeys(("inaturalist", "places", "sun"), 10_000),
    ),
)
"""DER@95 and DER@99, in percent with two decimals."""
