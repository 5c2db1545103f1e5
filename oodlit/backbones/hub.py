"""Check whether published weights are on this machine, or their hub can be reached.

The hub's own client retries for up to a minute before it reports that there is no network. One request in advance, only
if a download is required, answers this immediately. Local files are used without any request.
"""

from collections.abc import Sequence

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.retry import retried
from oodlit.base.secrets import mask_address, mask_text

ATTEMPTS = 2
PAUSE_S = 1.0
"""Pause before the second attempt, in seconds: the connection may just be starting."""


def check_hub(repository: str, files: Sequence[str], *, what: str, way_out: str) -> None:
    """Raise immediately if weights cannot be downloaded.

    Waits for at most two attempts of `HF_HUB_ETAG_TIMEOUT` seconds (10 by default) each; on a machine without any
    network it takes a second or two.

    Args:
        repository: Repository on the hub, with or without "@revision".
        files: Possible names of the weights.
        what: Who requires the weights, for the message.
        way_out: An alternative, for the message.

    Raises:
        InvalidArgumentError: None of the files is on this machine and the hub cannot be reached.
    """
    import huggingface_hub  # noqa: PLC0415 - takes half a second and is only required for weights from the hub
    from huggingface_hub import constants  # noqa: PLC0415
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]  # noqa: PLC0415 - public according to its docs

    name, _, revision = repository.partition("@")
    if any(isinstance(huggingface_hub.try_to_load_from_cache(name, f, revision=revision or None), str) for f in files):
        return
    url, timeout_s = constants.ENDPOINT, float(constants.HF_HUB_ETAG_TIMEOUT)
    try:  # any response counts, with the client and proxies of the hub
        retried(lambda: get_session().head(url, timeout=timeout_s), attempts=ATTEMPTS, backoff_s=PAUSE_S)
    except Exception as error:  # error types depend on the hub's HTTP client, which changes
        raise InvalidArgumentError(
            f"{what}: {' or '.join(files)} of {name!r} is not on this machine, and {mask_address(url)} cannot be"
            f" reached ({type(error).__name__}: {mask_text(str(error))}); connect to the internet, or {way_out}"
        ) from error
