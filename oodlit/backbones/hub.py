"""Published weights by name: whether they are on this machine, and whether their hub can be reached at all.

The hub's own client tries again for up to a minute before it says that there is no network. One question beforehand,
and only where something has to be fetched, gives the answer at once. What is on this machine is used unasked.
"""

from collections.abc import Sequence

from oodlit.base.retry import retried
from oodlit.errors import InvalidArgumentError

ATTEMPTS = 2
PAUSE_S = 1.0
"""A network that is just coming up gets a second chance."""


def check_hub(repository: str, files: Sequence[str], *, what: str, way_out: str) -> None:
    """Refuse to wait for weights that cannot come.

    The wait is at most two attempts of `HF_HUB_ETAG_TIMEOUT` seconds (10 by default) each; a machine without any
    network says so within a second or two.

    Args:
        repository: Repository on the hub, with or without "@revision".
        files: Names that the weights may have there.
        what: Who needs the weights, for the message.
        way_out: What else can be done, for the message.

    Raises:
        InvalidArgumentError: None of the files is on this machine and the hub cannot be reached.
    """
    import huggingface_hub  # noqa: PLC0415 - half a second that only weights from the hub need
    from huggingface_hub import constants  # noqa: PLC0415
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]  # noqa: PLC0415 - public, says its docs

    name, _, revision = repository.partition("@")
    if any(isinstance(huggingface_hub.try_to_load_from_cache(name, f, revision=revision or None), str) for f in files):
        return
    url, timeout_s = constants.ENDPOINT, float(constants.HF_HUB_ETAG_TIMEOUT)
    try:  # any answer counts, by the client and the proxies that the hub uses
        retried(lambda: get_session().head(url, timeout=timeout_s), attempts=ATTEMPTS, backoff_s=PAUSE_S)
    except Exception as error:  # the hub changes its HTTP client, and with it the types of errors
        raise InvalidArgumentError(
            f"{what}: the weights {name!r} are not on this machine, and {url} cannot be reached"
            f" ({type(error).__name__}: {error}); connect to the network, or {way_out}"
        ) from error
