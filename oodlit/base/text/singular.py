"""Put a noun and its verb into the singular after the number 1."""

import re

_KIND = "training|calibration|test|estimation|ID|OOD|data|unit|class|labeled|listed|annotated|published|known|unknown"
_KIND += "|repeated image|repeated category|repeated annotation|other|more|such|missing|unusable"
_NOUN = "image|class|detector|set|run|box|row|file|test|shard|value|name|label|logit|feature|sample|group|problem|score"
_MORE = "object|limit|level|key|part|model|curve|difference|reason|finding|split|comparison|batch|worker|process"
_MORE += "|annotation|parameter|confidence|item|id|pair|direction|folder|attempt|dimension"
_VERB = {"are": "is", "were": "was", "have": "has", "do": "does", "repeat": "repeats", "match": "matches"}
_VERB |= {"lie": "lies", "differ": "differs", "remain": "remains", "occur": "occurs", "reach": "reaches"}
_FIRST = r"(?: \(first: [^()]+\))?"
# In "1 of 3 images that ...", the clause describes all of them.
_ONE = re.compile(
    rf"(?<![\w.,:'\"/+-])(?<!level )(?<!label )(?<!\d of )1 (of \d[\d,]* )?((?:(?:{_KIND}) ){{0,2}})"
    rf"({_NOUN}|{_MORE})(e?s)(?![\w/'\"-]|\.\w)(?:((?(1)(?!)| that)| also|"
    rf"(?: (?:of|in|with|without)(?: (?!that |and )\S+){{1,4}}?)?{_FIRST}) ({'|'.join(_VERB)})\b)?"
)


def singular(text: str) -> str:
    """Return the text with singular nouns, and verbs, after the number 1. Names in quotes and paths stay as they are.

    After "1 of 3", only the verb is singular.

    Example:
        >>> singular("1 ID images are missing, 1 boxes without area were dropped, 11 boxes, '1 images', a/1 files")
        "1 ID image is missing, 1 box without area was dropped, 11 boxes, '1 images', a/1 files"
        >>> singular("1 images (first: 'a b') are left out, 1 files of a set (first: 'c') were not found")
        "1 image (first: 'a b') is left out, 1 file of a set (first: 'c') was not found"
        >>> singular("1 of 3 images have no label")
        '1 of 3 images has no label'
    """
    return _ONE.sub(
        lambda m: f"1 {m[1] or ''}{m[2]}{m[3]}{m[4] if m[1] else ''}{m[5] or ''}{' ' + _VERB[m[6]] if m[6] else ''}",
        text,
    )
