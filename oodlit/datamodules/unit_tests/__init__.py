"""Unit tests: synthetic images that nothing should accept (Bitterwolf, Mueller and Hein, ICML 2023)."""

from oodlit.datamodules.unit_tests.registry import UNIT_TESTS as UNIT_TESTS
from oodlit.datamodules.unit_tests.registry import UnitTest as UnitTest
from oodlit.datamodules.unit_tests.registry import draw as draw
from oodlit.datamodules.unit_tests.registry import encode as encode

__all__ = ["UNIT_TESTS", "UnitTest", "draw", "encode"]
