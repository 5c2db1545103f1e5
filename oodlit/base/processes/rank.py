"""Which of the processes of a run prints and warns; imported without torch."""

import os
import sys


def is_first_process() -> bool:
    """Whether this is the process that prints and writes.

    Before the processes are connected, the numbers of their launcher decide; without one, every process is the first.
    """
    known = sys.modules.get("torch.distributed")
    if known is not None and known.is_available() and known.is_initialized():
        return bool(known.get_rank() == 0)
    numbers = map(os.environ.get, ("RANK", "LOCAL_RANK", "SLURM_PROCID", "NODE_RANK"))
    return all(number in (None, "", "0") for number in numbers)
