"""Which detectors apply to a network, and why others do not."""

from collections.abc import Mapping

from oodlit.base.errors import RequirementError
from oodlit.base.network import BackboneFacts
from oodlit.base.text.warn import warn
from oodlit.detectors import Detector
from oodlit.results.names import some


def applicable(
    detectors: Mapping[str, Detector], facts: BackboneFacts, *, strict: bool = False, way_out: str = ""
) -> tuple[dict[str, Detector], dict[str, str]]:
    """Return the applicable detectors, and the reasons why the others are skipped, with a warning for each.

    Args:
        detectors: By name.
        facts: About the network.
        strict: Whether every detector must apply.
        way_out: What to do if none applies; empty = choose other detectors.

    Raises:
        RequirementError: A detector does not apply and `strict` is set, or none applies.
    """
    reasons = {name: reason for name, detector in detectors.items() if (reason := detector.why_not(facts))}
    if reasons and (strict or len(reasons) == len(detectors)):
        groups = [f"{some(names, 3)}: {text}" for names, text in by_reason(reasons)]
        listing = "; ".join(groups[:4]) + (f"; and {len(groups) - 4} other reasons" if groups[4:] else "")
        without = "remove these detectors, or pass strict=False (on the command line: omit --strict)"
        raise RequirementError(
            f"not applicable: {len(reasons)} of {len(detectors)} detectors ({listing});"
            f" {without if len(reasons) < len(detectors) else way_out or 'choose other detectors'}"
        )
    for name, reason in reasons.items():
        warn(f"detector {name!r} is skipped: it {reason}")
    return {name: detector for name, detector in detectors.items() if name not in reasons}, reasons


def by_reason(reasons: Mapping[str, str]) -> list[tuple[list[str], str]]:
    """Names of detectors with the reason that they share, most frequent first.

    Example:
        >>> by_reason({"vim": "needs training images", "knn": "needs training images"})
        [(['knn', 'vim'], 'need training images')]
    """
    groups: dict[str, list[str]] = {}
    for name, reason in sorted(reasons.items()):
        groups.setdefault(reason, []).append(name)
    verbs = {"needs": "need", "costs": "cost"}
    found = []
    for reason, names in sorted(groups.items(), key=lambda item: -len(item[1])):
        verb, _, rest = reason.partition(" ")
        found.append((names, f"{verbs[verb]} {rest}" if names[1:] and verb in verbs else reason))
    return found
