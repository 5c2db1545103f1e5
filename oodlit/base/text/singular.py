"""Put a noun and its verb into the singular after the number 1."""

import re

_KIND = "training|calibration|test|estimation|ID|OOD|data|unit|class|labeled|listed|annotated|published|known|unknown"
_KIND += "|repeated image|repeated category|repeated annotation"
_NOUN = "image|class|detector|set|run|box|row|file|test|shard|value|name|label|logit|feature|sample|group|problem|score"
_MORE = "object|limit|level|key|part|model|curve|difference|reason|finding|split|comparison|batch|worker|process"
_MORE += "|annotation|parameter|confidence|item|id"
_VERB = {"are": "is", "were": "was", "have": "has", "do": "does", "repeat": "repeats", "match": "matches"}
_VERB |= {"lie": "lies", "differ": "differs", "remain": "remains", "occur": "occurs", "reach": "reaches"}
_FIRST = r"(?: \(first: [^()]+\))?"
_ONE = re.compile(
    rf"(?<![\w.,:'\"/+-])(?<!level )(?<!label )(?<!\d of )1 ((?:(?:{_KIND}|other|more|such|missing|unusable) ){{0,2}})"
    rf"({_NOUN}|{_MORE}|pair|direction|folder|attempt|dimension)e?s(?![\w/'\"-]|\.\w)"
    rf"(?:( that| also|(?: (?:of|in|with|without)(?: (?!that |and )\S+){{1,4}}?)?{_FIRST}) ({'|'.join(_VERB)})\b)?"
)


def singular(text: str) -> str:
    """Return the text with singular nouns, and verbs, after the number 1. Names in quotes and paths stay as they are.

    Example:
        >>> singular("1 ID images are missing, 1 boxes without area were dropped, 11 boxes, '1 images', a/1 files")
        "1 ID image is missing, 1 box without area was dropped, 11 boxes, '1 images', a/1 files"
        >>> singular("1 images (first: 'a b') are left out, 1 files of a set (first: 'c') were not found")
        "1 image (first: 'a b') is left out, 1 file of a set (first: 'c') was not found"
    """
    return _ONE.sub(lambda m: f"1 {m[1]}{m[2]}{m[3] or ''}{' ' + _VERB[m[4]] if m[4] else ''}", text)
