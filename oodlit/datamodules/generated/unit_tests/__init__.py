"""Unit tests: synthetic images that nothing should accept (Bitterwolf, Mueller and Hein, ICML 2023)."""

from oodlit.datamodules.generated.unit_tests.registry import UNIT_TESTS as UNIT_TESTS
from oodlit.datamodules.generated.unit_tests.registry import UnitTest as UnitTest
from oodlit.datamodules.generated.unit_tests.registry import draw as draw
from oodlit.datamodules.generated.unit_tests.registry import encode as encode
from oodlit.datamodules.generated.unit_tests.source import Template as Template
from oodlit.datamodules.generated.unit_tests.source import UnitTestListing as UnitTestListing
from oodlit.datamodules.generated.unit_tests.source import UnitTestSource as UnitTestSource
from oodlit.datamodules.generated.unit_tests.source import unit_test_source as unit_test_source
from oodlit.datamodules.generated.unit_tests.source import unit_test_stream as unit_test_stream

__all__ = [
    "UNIT_TESTS",
    "Template",
    "UnitTest",
    "UnitTestListing",
    "UnitTestSource",
    "draw",
    "encode",
    "unit_test_source",
    "unit_test_stream",
]
