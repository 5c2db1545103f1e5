"""OpenOOD's public board of ImageNet-1k."""

from oodlit.results.published.protocol import Protocol, weights
from oodlit.results.published.table import PublishedTable

_CHOSEN = "the leaderboard does not state the settings, many of which are chosen on its validation images"
_WITH_SETTINGS = (
    "ASH", "AdaSCALE-A", "AdaSCALE-L", "DICE", "EBO", "GEN", "KNN", "NCI", "NNGuide", "ODIN", "OpenMax", "ReAct",
    "SCALE", "VIM", "WeiPer+KLD", "fDBD", "i-ODIN",
)  # fmt: skip

_SETS = {"near": ("ssb_hard", "ninco"), "far": ("inaturalist", "textures", "openimage_o"), "id": ("imagenet_val",)}

OPENOOD = PublishedTable(
    name="openood_imagenet1k",
    source="J. Zhang et al., OpenOOD v1.5: Enhanced Benchmark for Out-of-Distribution Detection, board of July 2025",
    url="https://github.com/Jingkang50/OpenOOD",
    tables="ImageNet-1k board (MIT license): post-hoc detectors on torchvision's V1 weights. MDS++ and RMDS++ are from"
    " later data of the leaderboard. In 'full-spectrum', ImageNet-V2, -C and -R count as ID",
    rule="AUROC of each set against 45,000 images of ImageNet-val (settings were chosen on the other 5,000). All"
    " images of a set are pooled; near is the mean over SSB-hard and NINCO; far is the mean over iNaturalist,"
    " Textures and OpenImage-O",
    file="openood_imagenet1k.csv",
    protocol=Protocol(
        "images",
        sets={**_SETS, **{f"full-spectrum {name}": sets for name, sets in _SETS.items()}},
        images={
            "imagenet_val": 45_000,
            "ssb_hard": 49_000,
            "ninco": 5_879,
            "inaturalist": 10_000,
            "textures": 5_160,
            "openimage_o": 15_869,
            "imagenet_v2": 10_000,
            "imagenet_c": 10_000,
            "imagenet_r": 30_000,
        },
        shifted={f"full-spectrum {name}": ("imagenet_v2", "imagenet_c", "imagenet_r") for name in _SETS},
    ),
    weights={"ResNet50": weights("resnet50.tv_in1k", 224, 0.875)},  # torchvision's V1; timm has no other of the board
    aliases=("openood", "openood-v1.5"),
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
    settings=dict.fromkeys(_WITH_SETTINGS, _CHOSEN) | {"RankFeat": {"then": None}, "MDS": {"power": 0.0}},
)
"""Near and far AUROC with the board's settings of detectors, some of them chosen on OOD validation data."""
