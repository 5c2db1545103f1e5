"""`oodlit demo severity`: compare detection on the easiest and the hardest unknown digits."""

from functools import partial

from oodlit.cli.demos.digits import run_digits
from oodlit.datamodules.benchmarks.digit_pool import DigitPoolBenchmark

run_severity = partial(run_digits, benchmark=DigitPoolBenchmark, epochs=8)
"""Train a small network on the digits 0-4, and rank all other digits by severity for every detector."""
