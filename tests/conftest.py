"""Settings for the whole suite: hypothesis profile, and guards that keep tests from leaking into each other."""

import os
import random
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed
from hypothesis import settings

# Workers share the cores, and the files of resumed runs are compared bit by bit.
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

settings.register_profile("oodlit", deadline=None, max_examples=40)
settings.load_profile("oodlit")


@pytest.fixture(autouse=True)
def _no_leaks() -> Iterator[None]:
    """Random states, environment and thread count are restored; a process group left open is a failure."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    environment, threads = dict(os.environ), torch.get_num_threads()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    torch.set_num_threads(threads)
    for name in set(os.environ) - set(environment) - {"PYTEST_CURRENT_TEST"}:
        del os.environ[name]
    os.environ.update({name: value for name, value in environment.items() if name != "PYTEST_CURRENT_TEST"})
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
        pytest.fail("the test left a process group open")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium of the system, for tests of pages; without one they are skipped, since pip cannot install it."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield launched
        launched.close()
