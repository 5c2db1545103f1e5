"""BibTeX entries of the detectors and data sets of a run, from the facts that are recorded about them."""

import re
from collections.abc import Iterable

from oodlit.results.names import distinct
from oodlit.results.record_parts import ReferenceRecord

_SPECIAL = re.compile(r"([&%$#_{}])")
_ARXIV = re.compile(r"https?://arxiv\.org/abs/(\d{4}\.\d{4,5})")


def to_bibtex(papers: Iterable[tuple[str, ReferenceRecord]]) -> str:
    """Write one entry per paper, with a comment that lists what the paper is cited for.

    Authors are those of the reference; a single name stands for the first author and others.

    Args:
        papers: Names of detectors or data sets, each with its paper.

    Example:
        >>> knn = ReferenceRecord("Deep Nearest Neighbors", "Y. Sun", "ICML", 2022, "https://arxiv.org/abs/2204.06507")
        >>> print(to_bibtex([("KNN", knn)]))
        % KNN
        @inproceedings{sun2022deep,
          author = {Y. Sun and others},
          title = {{Deep Nearest Neighbors}},
          booktitle = {ICML},
          year = {2022},
          eprint = {2204.06507},
          archivePrefix = {arXiv},
          url = {https://arxiv.org/abs/2204.06507},
        }
        <BLANKLINE>
    """
    users: dict[tuple[str, int], list[str]] = {}
    unique: dict[tuple[str, int], ReferenceRecord] = {}
    for name, paper in papers:
        unique.setdefault((paper.title, paper.year), paper)
        users.setdefault((paper.title, paper.year), []).append(name)
    keys = distinct(map(_key, unique.values()), same=str.casefold)
    entries = zip(keys, unique.values(), users.values(), strict=True)
    return "\n".join(_entry(key, paper, names) for key, paper, names in entries)


def citation(text: str, url: str) -> ReferenceRecord | None:
    """The paper in a citation of a data set, "Authors: title, venue year"; None if the text has another form.

    Example:
        >>> citation("Wang et al.: ViM: Out-of-Distribution with Virtual-logit Matching, CVPR 2022", "").authors
        'Wang'
    """
    found = re.fullmatch(r"(.+?): (.+), ([^,]+) (\d{4})", text)
    if found is None:
        return None
    authors, title, venue, year = found.groups()
    return ReferenceRecord(title, authors.removesuffix(" et al.").replace(", ", " and "), venue, int(year), url)


def _entry(key: str, paper: ReferenceRecord, used: Iterable[str]) -> str:
    is_preprint = paper.venue.casefold() == "arxiv"
    arxiv = _ARXIV.match(paper.url)
    fields = {
        "author": _escaped(paper.authors if " and " in paper.authors else f"{paper.authors} and others"),
        "title": f"{{{_escaped(paper.title)}}}",
        "booktitle": "" if is_preprint else _escaped(paper.venue),
        "year": str(paper.year),
        "eprint": arxiv[1] if arxiv else "",
        "archivePrefix": "arXiv" if arxiv else "",
        "url": re.sub(r"[{}]", "", paper.url) if paper.url.startswith("http") else "",
    }
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
    kind = "misc" if is_preprint else "inproceedings"
    return "\n".join([f"% {', '.join(used)}", f"@{kind}{{{key},", *lines, "}", ""])


def _key(paper: ReferenceRecord) -> str:
    """Last name of the first author, year, and first word of the title with more than three letters."""
    words = re.findall(r"[a-z]+", paper.title.casefold())
    surname = re.sub(r"[^a-z]", "", paper.authors.partition(" and ")[0].split()[-1].casefold())
    return f"{surname or 'anonymous'}{paper.year}{next((word for word in words if len(word) > 3), '')}"


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)
