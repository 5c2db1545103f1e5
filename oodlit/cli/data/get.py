"""`oodlit data get`: download a known data set."""

from pathlib import Path


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
    how = about.by_hand or f"see {about.source}"
    if about.source.startswith("generated"):
        say(f"{name}: {how}")
        return 0
    if about.by_hand or not about.files:
        say(f"{name} cannot be downloaded by this command. {how[0].upper()}{how[1:]}.")
        say(f"Put the files into {out / name}, then run: oodlit data check {out}")
        return 1
    columns = TextColumn("{task.description}"), BarColumn(bar_width=30), DownloadColumn(), TransferSpeedColumn()
    for file in about.files:
        place = out / name / file.name
        with Progress(*columns) as bars:
            bars.add_task(file.name, total=None)
            progress = lambda n, total: bars.update(bars.task_ids[0], completed=n, total=total)  # noqa: E731
            download(file.url, place, md5=file.md5, progress=progress)
        say(f"{place}: {'checksum matches' if file.md5 else 'no checksum is known'}")
    say(f"Next: oodlit data check {out}")
    return 0
