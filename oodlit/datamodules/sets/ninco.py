"""NINCO: 64 OOD classes checked by hand, unit tests as published and as generated here, cleaned subsets of others."""

from collections.abc import Collection
from pathlib import PurePosixPath
from typing import NamedTuple

from oodlit.datamodules.generated.unit_tests import UNIT_TESTS
from oodlit.datamodules.sets.description import DatasetDescription, Membership, Placement
from oodlit.roles import Role


class NincoClass(NamedTuple):
    """One OOD class of NINCO."""

    folder: str
    """Folder in the archive; the name of the group in results."""
    n_images: int
    """Number of images."""
    name: str
    """As printed in the paper."""
    short_name: str
    """As printed in the paper's tables."""
    source: str
    """The data set that the images were taken from."""
    in_21k: bool
    """ImageNet-21k has this class or one that contains it: networks pre-trained there have seen such images."""


NINCO_CLASSES: tuple[NincoClass, ...] = (
    NincoClass("Caracal caracal caracal", 100, "caracal", "Caracal", "iNaturalist download", True),
    NincoClass("amphiuma_means", 176, "two-toed amphiuma (salamander)", "2TAmph", "SPECIES", True),
    NincoClass("aphanizomenon_flosaquae", 46, "AFA (cyanobacterium)", "AFA", "SPECIES", True),
    NincoClass("araneus_gemma", 100, "cat-faced spider", "CatFSp", "SPECIES", True),
    NincoClass("arctocephalus_galapagoensis", 91, "Galápagos fur seal", "GFurS", "SPECIES", True),
    NincoClass("batrachoseps_attenuatus", 100, "California slender salamander", "CSSala", "SPECIES", True),
    NincoClass("chicken_quesadilla", 100, "chicken quesadilla", "CQuesa", "FOOD-101", False),
    NincoClass("cirsium_pitcheri", 100, "dune thistle", "DThist", "SPECIES", True),
    NincoClass("creme_brulee", 99, "crème brûlée", "CBrûlée", "FOOD-101", True),
    NincoClass("ctenolepisma_longicaudata", 100, "long-tailed silverfish", "LTSilF", "SPECIES", True),
    NincoClass("cup_cakes", 80, "cupcakes", "CCake", "FOOD-101", False),
    NincoClass("darlingtonia_californica", 100, "California pitcher plant", "CPitch", "SPECIES", True),
    NincoClass("dendrolagus_lumholtzi", 100, "Lumholtz's tree-kangaroo", "LTRoo", "SPECIES", True),
    NincoClass("donuts", 100, "donuts", "Donuts", "FOOD-101", True),
    NincoClass("epithelantha_micromeris", 100, "E. micromeris (cactus)", "EMicro", "SPECIES", False),
    NincoClass("erysimum_franciscanum", 100, "Franciscan wallflower", "Franci", "SPECIES", True),
    NincoClass("f_field_road", 96, "field road", "FieldRd", "PLACES", True),
    NincoClass("f_forest_path", 100, "forest path", "ForPth", "PLACES", True),
    NincoClass("ferocactus_pilosus", 100, "Mexican lime cactus", "MLCact", "SPECIES", True),
    NincoClass("haemulon_sciurus", 96, "bluestriped grunt", "BSGrunt", "SPECIES", True),
    NincoClass("hippopus_hippopus", 31, "Horse Hoof clam", "HHClam", "SPECIES", True),
    NincoClass("lasionycteris_noctivagans", 99, "silver-haired bat", "SilverHB", "SPECIES", True),
    NincoClass("lathyrus_odoratus", 100, "sweet pea", "SwPea", "SPECIES", True),
    NincoClass("lepomis_auritus", 100, "redbreast sunfish", "RBSunf", "SPECIES", True),
    NincoClass("leptoglossus_phyllopus", 100, "Eastern leaf-footed bug", "ELFBug", "SPECIES", True),
    NincoClass("microcystis_wesenbergii", 33, "M. wesenbergii (cyanobacterium)", "MWesen", "SPECIES", True),
    NincoClass("octopus_bimaculoides", 100, "California two-spot octopus", "C2SOct", "SPECIES", True),
    NincoClass("octopus_rubescens", 100, "ruby octopus", "RubyOct", "SPECIES", True),
    NincoClass("ozotoceros_bezoarticus", 82, "Pampas deer", "PDeer", "SPECIES", True),
    NincoClass("platycephalus_fuscus", 100, "dusky flathead (fish)", "DFlath", "SPECIES", True),
    NincoClass("polistes_dominula", 100, "European paper wasp", "EPWasp", "SPECIES", True),
    NincoClass("pseudorca_crassidens", 67, "false killer whale", "FalseKW", "SPECIES", True),
    NincoClass("s_sky", 68, "sky", "Sky", "PLACES", True),
    NincoClass("sarpa_salpa", 100, "dreamfish", "Dreamf", "SPECIES", True),
    NincoClass("sarracenia_alata", 100, "yellow trumpets", "YTrump", "SPECIES", True),
    NincoClass("sepia_apama", 99, "giant cuttlefish", "GCuttle", "SPECIES", True),
    NincoClass("sepia_officinalis", 100, "common cuttlefish", "CCuttle", "SPECIES", True),
    NincoClass("sepioteuthis_australis", 99, "southern calamari", "SCalam", "SPECIES", True),
    NincoClass("spaghetti_bolognese", 67, "spaghetti bolognese", "SBolo", "FOOD-101", True),
    NincoClass("streptopus_lanceolatus", 100, "rosybell (flowering plant)", "Rosyb", "SPECIES", False),
    NincoClass("tapirus_bairdii", 100, "Central American tapir", "CATapir", "SPECIES", True),
    NincoClass("triturus_marmoratus", 100, "marbled newt", "MNewt", "SPECIES", True),
    NincoClass("tursiops_aduncus", 100, "Indo-Pacific bottlenose dolphin", "IPBNDol", "SPECIES", True),
    NincoClass("vaccinium_reticulatum", 100, "'ōhelo 'ai (flowering plant)", "'ō'ai", "SPECIES", False),
    NincoClass("waffles", 61, "waffles", "Waffle", "FOOD-101", False),
    NincoClass("skipper_caterpillar", 100, "skipper caterpillar", "SCaterp", "iNaturalist download", True),
    NincoClass("french_fries", 100, "French fries", "Fries", "FOOD-101", True),
    NincoClass("high heels", 99, "high heels", "HHeels", "scraped", False),
    NincoClass("bagpipe", 97, "bagpipe", "Bagp", "ImageNet-21k", True),
    NincoClass("mbira", 67, "mbira", "Mbira", "scraped", False),
    NincoClass("hindu_temple", 51, "Hindu temple", "HinTp", "scraped", True),
    NincoClass("fireworks", 100, "fireworks", "FireW", "scraped", False),
    NincoClass("shuttlecock", 67, "shuttlecock", "ShCo", "scraped", True),
    NincoClass("glass_of_milk", 89, "glass of milk", "GlMilk", "scraped", True),
    NincoClass("cable", 88, "cable", "Cabl", "scraped", True),
    NincoClass("stapler", 100, "stapler", "Stapl", "CALTECH-101", True),
    NincoClass("windsor_chair", 71, "Windsor chair", "WiChair", "CALTECH-101", True),
    NincoClass("pyramid", 100, "pyramid", "Pyra", "CALTECH-101", True),
    NincoClass("gramophone", 56, "gramophone", "Gramo", "scraped", True),
    NincoClass("scissors", 100, "scissors", "Sciss", "CALTECH-101", True),
    NincoClass("door", 100, "door", "Door", "MYNURSINGHOME", True),
    NincoClass("fire_extinguisher", 106, "fire extinguisher", "FireEx", "MYNURSINGHOME", True),
    NincoClass("empty_water_dispencer", 99, "water dispenser (jugless)", "WDisp", "MYNURSINGHOME", True),
    NincoClass("walker", 99, "walker", "Walker", "MYNURSINGHOME", True),
)
"""The 64 classes in the order of the published list."""

_POPULAR = {
    "Places": 153,
    "iNaturalist_OOD_Plants": 383,
    "Species": 172,
    "ImageNet_O": 309,
    "OpenImage_O": 368,
    "Textures": 288,
    "COOD": 212,
    "ImageNet_1k_OOD_400_ood": 235,
    "SSB_easy": 151,
    "SSB_hard": 208,
    "360OpenSet": 236,
}
_LICENCE = "CC-BY-4.0"
_SOURCE = "https://zenodo.org/records/8013288"
_CITATION = "Bitterwolf, Mueller, Hein: In or Out? Fixing ImageNet Out-of-Distribution Detection Evaluation, ICML 2023"
_MD5 = "b9ffae324363cd900a81ce3c367cd834"


def below(folder: str, groups: Collection[str]) -> Placement:
    """Placement of files at `folder/<group>/...`, or at `<group>/...` if the given folder is that one."""

    def place(path: PurePosixPath) -> Membership | None:
        parents = path.parts[:-1]
        if folder in parents:
            parents = parents[parents.index(folder) + 1 :]
        elif not parents or parents[0] not in groups:
            return None
        return Membership(group=parents[0]) if parents else None

    return place


NINCO = DatasetDescription(
    name="ninco",
    title="NINCO (No ImageNet Class Objects)",
    role=Role.OOD,
    layout="NINCO/NINCO_OOD_classes/<class>/<class>_<number>_<original>",
    place=below("NINCO_OOD_classes", {c.folder for c in NINCO_CLASSES}),
    expected_count=5879,
    classes={c.folder: c.n_images for c in NINCO_CLASSES},
    licence=_LICENCE,
    source=_SOURCE,
    citation=_CITATION,
    md5=_MD5,
)
NINCO_UNIT_TESTS = DatasetDescription(
    name="ninco_unit_tests",
    title="NINCO's own unit-test images",
    role=Role.UNIT_TEST,
    layout="NINCO/NINCO_OOD_unit_tests/<test>/<test>_<number>_<test>_<index>",
    place=below("NINCO_OOD_unit_tests", UNIT_TESTS),
    expected_count=17 * 400,
    classes=dict.fromkeys(UNIT_TESTS, 400),
    licence=_LICENCE,
    source=_SOURCE,
    citation=_CITATION,
    md5=_MD5,
)
UNIT_TEST_SET = DatasetDescription(
    name="unit_tests",
    title="17 unit tests, generated at the sizes and formats of ID images",
    role=Role.UNIT_TEST,
    layout="<test>/<number>.{png,jpg}, or nothing: generated during the run",
    place=below("unit_tests", UNIT_TESTS),
    classes=dict.fromkeys(UNIT_TESTS),
    licence="none needed: synthetic",
    source="generated by oodlit from test, index and seed",
    citation=_CITATION,
)
NINCO_POPULAR = DatasetDescription(
    name="ninco_popular",
    title="Subsets of eleven popular OOD sets, cleaned of ImageNet objects by NINCO's authors",
    role=Role.OOD,
    layout="NINCO/NINCO_popular_datasets_subsamples/<set>/...",
    place=below("NINCO_popular_datasets_subsamples", _POPULAR),
    expected_count=2715,
    classes=_POPULAR,
    licence="that of each set",
    source=_SOURCE,
    citation=_CITATION,
    md5=_MD5,
)
