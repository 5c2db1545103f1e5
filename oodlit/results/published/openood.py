"""OpenOOD's public board of ImageNet-1k."""

from oodlit.results.published.protocol import Protocol
from oodlit.results.published.table import PublishedTable

_CHOSEN = "the board does not state them; many are chosen on its validation images"
_WITH_SETTINGS = (
    "ASH", "AdaSCALE-A", "AdaSCALE-L", "DICE", "EBO", "GEN", "KNN", "NCI", "NNGuide", "ODIN", "OpenMax", "ReAct",
    "SCALE", "VIM", "WeiPer+KLD", "fDBD", "i-ODIN",
)  # fmt: skip

OPENOOD = PublishedTable(
    name="openood_imagenet1k",
    source="J. Zhang et al., OpenOOD v1.5: Enhanced Benchmark for Out-of-Distribution Detection, board of July 2025",
    url="https://github.com/Jingkang50/OpenOOD",
    tables="ImageNet-1k board (MIT), post-hoc detectors on torchvision's V1 weights; MDS++ and RMDS++ from later"
    " data of the board. 'full-spectrum': ImageNet-V2, -C and -R count as ID",
    rule="AUROC of each set against 45 000 images of ImageNet-val (settings were chosen on the other 5 000). All images"
    " of a set are pooled; near is the mean over SSB-hard and NINCO, far over iNaturalist, Textures and"
    " OpenImage-O",
    file="openood_imagenet1k.csv",
    protocol=Protocol(
        "images",
        sets={
            "near": ("ssb_hard", "ninco"),
            "far": ("inaturalist", "textures", "openimage_o"),
            "full-spectrum id": (),
            "full-spectrum near": (),
            "full-spectrum far": (),
            "id": ("imagenet_val",),
        },
        images={
            "imagenet_val": 45_000,
            "ssb_hard": 49_000,
            "ninco": 5_879,
            "inaturalist": 10_000,
            "textures": 5_160,
            "openimage_o": 15_869,
        },
    ),
    detectors={
        "TempScale": "TemperatureScaledMSP",
        "MDS": "Mahalanobis",
        "RMDS": "RelativeMahalanobis",
        "MDS++": "MahalanobisPlusPlus",
        "RMDS++": "RelativeMahalanobisPlusPlus",
        "EBO": "Energy",
        "MLS": "MaxLogit",
        "KLM": "KLMatching",
        "WeiPer+KLD": "WeiPer",
        "NAC": "",  # of four layers; ours reads the last features alone
    },
    settings=dict.fromkeys(_WITH_SETTINGS, _CHOSEN) | {"RankFeat": {"then": None}},
)
"""Near and far AUROC with the board's settings of detectors, some of them chosen on OOD validation data."""
