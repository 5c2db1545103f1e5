"""NINCO's own figures: its tables, and the result file of its first release."""

from oodlit.results.published.protocol import Protocol, weights
from oodlit.results.published.table import PublishedTable, Stated, read_rows

_SOURCE = "J. Bitterwolf, M. Mueller and M. Hein, In or Out? Fixing ImageNet Out-of-Distribution Detection Evaluation"
_RULE = (
    "FPR at a TPR of 95 % and other metrics of each OOD class against ImageNet-val, and the means over the classes."
    " The threshold is the interpolated 5 % quantile of the ID scores"
)
_DETECTORS = {"RMahalanobis": "RelativeMahalanobis", "RCos": "RelativeCosine"}
_PROTOCOL = Protocol(
    "classes",
    "interpolated",
    # Of 100 images of a class and 50,000 ID images, an AUPR_E of 45 % would need an AUROC far above the printed one.
    unclear=("mean_aupr_s", "mean_aupr_e"),
    images={"imagenet_val": 50_000},
    train_images=1_281_167,
)
_SETTINGS: dict[str, Stated] = {
    "Energy": {"temperature": 1.0},
    "Mahalanobis": {"power": 0.0},
    "KNN": {"k": (1000, None), "bank_size": None},
    "ViM": {"dim": None},  # by the width, as the default here
    "ReAct": {"percentile": 99.0, "threshold": None, "then": None},
    "Cosine": {"concepts": "means"},
    "RCos": {"concepts": "means", "temperature": 1.0},
}
"""From the authors' program, detection_methods.py."""
_ZERO_SHOT: dict[str, Stated] = {"Cosine": {"concepts": "head"}, "RCos": {"concepts": "head", "temperature": 1.0}}
_WEIGHTS = {
    row["printed"]: weights(row["model"], int(row["img_size"]), float(row["crop_pct"]))
    for row in read_rows("ninco_weights.csv")
}
"""Weights for the models in Table 8, which has no tags or sizes: today's timm weights with the printed accuracy.

For EffNetv2-M and EffNetv2-M-21k none has it; BiT-s are not weights of timm.
"""

NINCO = PublishedTable(
    name="ninco",
    source=f"{_SOURCE}, ICML workshop version, 2023",
    url="https://arxiv.org/abs/2306.00826",
    tables="tables 3-6: 26 classifiers, and zero-shot CLIP with cosine detectors only. ReAct is energy + ReAct."
    " Table 14: means over the eleven cleaned sets. Values per class: table 7 (two classifiers), tables 2, 11 and 12"
    " (unit tests) and 15-18 (cleaned sets). Figures that are not clearly readable are left out",
    rule=f"{_RULE}. NINCO has 64 classes",
    file="ninco.csv",
    protocol=_PROTOCOL,
    detectors=_DETECTORS,
    settings=_SETTINGS,
    settings_of_models=dict.fromkeys(("clip-ViT-B-224", "clip-ViT-L-336"), _ZERO_SHOT),
    weights=_WEIGHTS,
    class_file="ninco_classes.csv.gz",
)
"""Means over the 64 OOD classes and over the eleven cleaned sets, in percent with one decimal."""

NINCO_FIRST_RELEASE = PublishedTable(
    name="ninco_first_release",
    source=f"{_SOURCE}, result file of the first release, 2023",
    url="https://github.com/j-cb/NINCO",
    tables="29 classifiers (MIT license). oodlit computes the means from the values per class. Zero-shot CLIP and"
    " popular sets that were not cleaned are left out. The file does not state weights and image sizes, and most"
    " figures differ from the paper's for the model of the same name, so oodlit matches no network to these rows",
    rule=f"{_RULE}. The release has 46 classes, some of which were cleaned later",
    file="ninco_first_release.csv",
    protocol=_PROTOCOL,
    detectors=_DETECTORS,
    settings={**_SETTINGS, "Residual": "the table does not state the dimension of the principal space"},
    class_file="ninco_first_release_classes.csv.gz",
)
"""Means over the 46 OOD classes of the first release; `NINCO` has other values."""
