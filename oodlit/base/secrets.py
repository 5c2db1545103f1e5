"""Mask passwords, keys and signed addresses in everything that is written or printed."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml  # type: ignore[import-untyped]

from oodlit.base.yaml_files import load_yaml

MASK = "***"
"""Replaces a secret."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*(?:::[A-Za-z][A-Za-z0-9+.\-]*)*(?:://|(?<=[a-z]{3}):/(?!/))")
"""The start of an address, with one or two slashes: `pathlib` turns two slashes into one."""
_ADDRESS = re.compile(rf"""(?<![A-Za-z0-9+.\-]){_SCHEME.pattern}[^\s"'<>]+""")
_NAMED = re.compile(
    r"""(?<![\w./\-])(?P<name>(?P<option>--?)?[A-Za-z_][\w.\-]*)"""
    r"""(?:\\*["']?[ \t]*[=:][ \t]*|(?(option)(?:["'],?)?[ \t]+(?!--)|(?!)))"""
)
"""A name before its value: `name=`, `'name': `, `--name `."""
_LOGIN = re.compile(
    r"""(?:(?<![\w./\-*@])|(?<=//)(?<!://))[^\s:/@"'<>,;()\[\]{}=]{1,64}:(?!\\)[^\s/"'<>]{1,1024}@(?=[\w\[])"""
)
"""A user and a password without a scheme, up to the host."""
_QUOTED = r"""\\+"[^"]*"?|\\+'[^']*'?|[bfru]{0,2}"(?:\\.|[^"\\])*"?|[bfru]{0,2}'(?:\\.|[^'\\])*'?"""
_VALUE = re.compile(rf"""{_QUOTED}|(?:(?:Bearer|Basic)[ ]+)?[^\s,;&"')\]}}]+""", re.IGNORECASE | re.DOTALL)
_PAIR = re.compile(rf"""(?i)([(\[]\s*)(["'])([\w.\-]+)\2(,\s*)({_QUOTED})(?=\s*[)\]])""")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ALWAYS = re.compile(r"passw(or)?d|passphrase|secret|credential|api_?key|connection_?string|authorization|signature")
_LAST = {"auth", "bearer", "cookie", "cookies", "jwt", "key", "pass", "passcode", "pwd", "sas", "sig", "token"}
_JOINED = ("accesskey", "accountkey", "privatekey", "sharedkey", "token")


def is_secret(name: str) -> bool:
    """Whether a name of an argument, option or variable stands for a secret.

    Example:
        >>> [is_secret(name) for name in ("password", "AWS_ACCESS_KEY_ID", "hfToken", "sas", "apikey")]
        [True, True, True, True, True]
        >>> [is_secret(name) for name in ("tokenizer", "num_tokens", "key_dim", "monkey", "keys", "author")]
        [False, False, False, False, False, False]
    """
    words = [word.lower() for word in _WORD.findall(name)]
    if _ALWAYS.search("_".join(words)):
        return True
    while words and words[-1] in ("id", "value"):
        words.pop()
    return bool(words) and (words[-1] in _LAST or words[-1].endswith(_JOINED))


def mask_address(address: str) -> str:
    """Mask user, password and query of an address; other text is returned as it is.

    Example:
        >>> mask_address("https://user:password@example.org/a.tar?X-Amz-Signature=5c1")
        'https://***@example.org/a.tar?***'
        >>> mask_address("shards/a-000000.tar")
        'shards/a-000000.tar'
    """
    if not (found := _SCHEME.match(address)):
        return address
    scheme, rest = found[0], address[found.end() :]
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    port = host.rpartition(":")[2]
    if "@" in host:
        rest = f"{MASK}@{rest[host.rindex('@') + 1 :]}"
    elif ":" in host and not port.isdigit() and not host.endswith("]") and "@" in rest:  # a password with "/" or "?"
        rest = f"{MASK}@{rest.rpartition('@')[2]}"
    rest = re.sub(r"(?s)\?.+|#(?=.*=).+", lambda found: found[0][0] + MASK, rest, count=1)
    return scheme + rest


def mask_text(text: str) -> str:
    """Mask addresses, and values beside names of secrets, in a message or another text.

    A "key" alone is not masked here: in messages it names an image. The word after an option such as `--password` is
    taken as its value.

    Example:
        >>> mask_text("cannot read https://u:p@example.org/a.tar (api_key=5c1, key=far/3)")
        'cannot read https://***@example.org/a.tar (api_key=***, key=far/3)'
        >>> mask_text("curl --token 5c1 me:5c1@example.org failed")
        'curl --token *** ***@example.org failed'
    """
    text = _PAIR.sub(_mask_pair, _LOGIN.sub(f"{MASK}@", _ADDRESS.sub(_mask_found, text)))
    parts, place = [], 0
    while found := _NAMED.search(text, place):
        parts.append(text[place : found.end()])
        place = found.end()
        if found["name"] != "key" and is_secret(found["name"]) and not text.startswith("//", place):
            parts.append(_masked(text[place : (end := _end_of_value(text, place))]))
            place = end
    return "".join([*parts, text[place:]])


def _mask_found(found: re.Match[str]) -> str:
    address = found[0].rstrip(".,;:)]}")
    return mask_address(address) + found[0][len(address) :]


def _mask_pair(found: re.Match[str]) -> str:
    opened, quote, name, comma, value = found.groups()
    is_shown = name == "key" or not is_secret(name)
    return found[0] if is_shown else f"{opened}{quote}{name}{quote}{comma}{_masked(value)}"


def _end_of_value(text: str, start: int) -> int:
    """Return where a value in a message ends: after its text, or after its closing bracket, which may be missing."""
    if text[start : start + 1] not in ("[", "{", "("):
        found = _VALUE.match(text, start)
        return found.end() if found else start
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] in "[{(") - (text[place] in ")}]")
        if not depth:
            return place + 1
    return len(text)


def _masked(value: str) -> str:
    quote = value[0] if value[:1] in ("'", '"') else ""
    return f"{quote}{MASK}{quote}" if value else ""


def mask(value: Any) -> Any:
    """Mask secrets in plain values: in texts as `mask_text` does, and all values beside the name of a secret.

    A list of pairs of a name and a value is read like a mapping. Numbers stay, except those of a password.

    Example:
        >>> mask({"folder": "https://u:p@example.org/", "storage_options": [["key", "5c1"], ["anon", False]]})
        {'folder': 'https://***@example.org/', 'storage_options': [['key', '***'], ['anon', False]]}
    """
    if isinstance(value, str):  # an address can have blanks and quotes in its password
        return mask_text(mask_address(value) if _SCHEME.match(value) else value)
    if isinstance(value, Mapping):
        return {name: _mask_value(str(name), inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        if value and all(isinstance(v, list | tuple) and len(v) == 2 and isinstance(v[0], str) for v in value):
            return [[name, _mask_value(name, inner)] for name, inner in value]
        return [mask(inner) for inner in value]
    return value


def _mask_value(name: str, value: Any) -> Any:
    return _hide(value, numbers=bool(_ALWAYS.search(name.lower()))) if is_secret(name) else mask(value)


def _hide(value: Any, *, numbers: bool) -> Any:
    if isinstance(value, Mapping):
        return {name: _hide(inner, numbers=numbers) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_hide(inner, numbers=numbers) for inner in value]
    is_shown = not value or isinstance(value, bool) or (isinstance(value, int | float) and not numbers)
    return value if is_shown else MASK


def mask_yaml(text: str) -> str:
    """Mask a configuration in YAML; a text without secrets is returned as it is.

    Example:
        >>> print(mask_yaml("logger: {api_key: 5c1, project: birds}"))
        logger:
          api_key: '***'
          project: birds
        <BLANKLINE>
    """
    try:
        value = load_yaml(text)
    except yaml.YAMLError:
        return mask_text(text)
    masked = mask(value)
    return text if masked == value else str(yaml.safe_dump(masked, sort_keys=False))


def mask_words(words: Sequence[str]) -> list[str]:
    """Mask the words of a command line.

    Example:
        >>> mask_words(["oodlit", "--logger.init_args.api_key", "5c1", "--data={key: 5c1, root: images}"])
        ['oodlit', '--logger.init_args.api_key', '***', "--data={key: '***', root: images}"]
    """
    masked: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        name, equals, value = word.partition("=")
        if not (equals and re.fullmatch(r"-{0,2}[A-Za-z][\w.+\-]*", name)):
            name, equals, value = "", "", word
        is_value = before.startswith("-") and "=" not in before and not word.startswith("--")
        if is_value and is_secret(before.rpartition(".")[2]):
            masked.append(MASK)
        elif is_secret(name.rpartition(".")[2]):
            masked.append(name + equals + MASK)
        elif value.lstrip()[:1] in ("{", "["):
            masked.append(name + equals + _mask_flow(value))
        else:
            masked.append(mask_text(word))
    return masked


def _mask_flow(text: str) -> str:
    masked = mask_yaml(text)
    if masked == text or text.strip() == masked.strip():
        return text
    try:
        return str(yaml.safe_dump(load_yaml(masked), default_flow_style=True, sort_keys=False, width=10**9)).strip()
    except yaml.YAMLError:
        return masked
