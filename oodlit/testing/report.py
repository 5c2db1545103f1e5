"""What a run of the checks found."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from oodlit.testing.clauses import ConformanceError

Status: TypeAlias = Literal["passed", "failed", "expected failure", "unexpected pass", "not applicable", "not run"]


@dataclass(frozen=True)
class Row:
    """One check.

    Args:
        check: Name of the check.
        status: What came out.
        message: Finding, excuse, or why the check does not apply or was not run; empty if it passed.
        clause: Short name of the clause.
    """

    check: str
    status: Status
    message: str
    clause: str


@dataclass(frozen=True)
class Report:
    """All checks of one detector.

    Args:
        detector: The detector as one would write it in code.
        rows: One per check.

    Example:
        >>> print(Report("MSP()", (Row("check_refit", "not applicable", "looks at no image", "refit"),)))
        MSP(): 0 passed, 1 not applicable, 0 failed
          not applicable    check_refit  looks at no image
    """

    detector: str
    rows: tuple[Row, ...]

    @property
    def passed(self) -> bool:
        """True if nothing failed and nothing passed that was expected to fail."""
        return not self.failures

    @property
    def failures(self) -> tuple[Row, ...]:
        """Rows that failed, or passed unexpectedly."""
        return tuple(row for row in self.rows if row.status in {"failed", "unexpected pass"})

    def raise_if_failed(self) -> None:
        """Raise one error with all failures.

        Raises:
            ConformanceError: Something failed, or passed unexpectedly.
        """
        if self.failures:
            raise ConformanceError("\n".join(row.message for row in self.failures))

    def __str__(self) -> str:
        """A table: counts, then one line per check, failures with their message."""
        counts = {s: sum(row.status == s for row in self.rows) for s in _ORDER}
        shown = ", ".join(f"{n} {s}" for s, n in counts.items() if n or s in {"passed", "failed"})
        width = max((len(row.check) for row in self.rows), default=0)
        lines = [f"{self.detector}: {shown}"]
        for row in sorted(self.rows, key=lambda r: (_ORDER.index(r.status), r.check)):
            if row.status == "not run":  # all for one reason, which is a failure below
                continue
            text = row.message.replace("\n", "\n" + " " * 6)
            lines.append(f"  {row.status:16}  {row.check:{width}}  {text}".rstrip())
        return "\n".join(lines)


_ORDER: tuple[Status, ...] = ("passed", "expected failure", "not applicable", "not run", "unexpected pass", "failed")
