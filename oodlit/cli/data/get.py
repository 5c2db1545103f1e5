"""`oodlit data get`: download a known data set."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def get(name: str, *, out: Path = Path("data")) -> int:
    """Download a known data set, if it needs no login.

    Run the command again to continue an interrupted download. Archives are not unpacked, because 'oodlit shards
    build' reads them as they are. For a set that it cannot download, the command prints what to do by hand, and the
    exit code is 1.

    Args:
        name: a data set of 'oodlit data list'
        out: folder; the archive is written to a subfolder NAME
    """
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from oodlit.cli.console import say
    from oodlit.datamodules import describe
    from oodlit.datamodules.shards.download import download

    about = describe(name)
    say(f"{about.title}; license: {about.licence}")
    if about.by_hand or not about.files:
        say(f"{name} cannot be downloaded by this command: {about.by_hand or f'see {about.source}'}")
        say(f"Put the files into {out / name}, then run: oodlit data check {out}")
        return 1
    columns = TextColumn("{task.description}"), BarColumn(bar_width=30), DownloadColumn(), TransferSpeedColumn()
    for file in about.files:
        with Progress(*columns) as bars:
            advance = partial(_advance, bars, bars.add_task(file.name, total=None))
            download(file.url, out / name / file.name, md5=file.md5, progress=advance)
        say(f"{out / name / file.name}: {'checksum matches' if file.md5 else 'no checksum is known'}")
    say(f"Next: oodlit data check {out}")
    return 0


def _advance(bars: "Progress", task: "TaskID", have: int, total: int | None) -> None:
    bars.update(task, completed=have, total=total)
