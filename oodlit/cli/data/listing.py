"""`oodlit data list`: where known data sets are served."""

from collections.abc import Iterator


def listing(*, verbose: bool = False, images: str | None = None) -> None:
    """List download sources and licenses of data sets.

    Args:
        verbose: add addresses, checksums, and what to do by hand
        images: print this list of images, such as ssb_hard_49000
    """
    from oodlit.cli.console import say
    from oodlit.cli.listing import print_rows
    from oodlit.datamodules.benchmarks.lists import published_list

    if images:
        say("\n".join(published_list(images)))
    else:
        print_rows(_rows(), 4, "data sets", verbose=verbose)


def _rows() -> Iterator[dict[str, str]]:
    from oodlit.datamodules import descriptions

    for name, about in descriptions().items():
        yield {
            "name": name,
            "get": "oodlit data get" if about.files and not about.by_hand else "by hand",
            "images": "" if about.expected_count is None else f"{about.expected_count:,}",
            "license": about.licence,
            "by hand": about.by_hand,
            "page": about.source,
            **{file.name: " ".join(filter(None, (file.url, file.md5 and f"MD5 {file.md5}"))) for file in about.files},
        }
