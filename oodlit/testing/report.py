"""Reports of the conformance suite."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from oodlit.testing.clauses import ConformanceError

Status: TypeAlias = Literal["passed", "failed", "expected failure", "unexpected pass", "not applicable", "not run"]


@dataclass(frozen=True)
class Row:
    """Result of one check.

    Args:
        check: Name of the check.
        status: Result of the check.
        message: Finding, reason of an expected failure, or why the check does not apply or was not run; empty if it
            passed.
        clause: Short name of the clause.
    """

    check: str
    status: Status
    message: str
    clause: str


@dataclass(frozen=True)
class Report:
    """Results of all checks of one detector.

    Args:
        detector: The detector as Python code.
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
        """Whether there are no failures and no unexpected passes."""
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
        """A table with counts and one line per check; failures have their message."""
        counts = {s: sum(row.status == s for row in self.rows) for s in _ORDER}
        shown = ", ".join(f"{n} {s}" for s, n in counts.items() if n or s in {"passed", "failed"})
        width = max((len(row.check) for row in self.rows), default=0)
        lines = [f"{self.detector}: {shown}"]
        for row in sorted(self.rows, key=lambda r: (_ORDER.index(r.status), r.check)):
            if row.status == "not run":  # all for the same reason, which is a failure below
                continue
            text = row.message.replace("\n", "\n" + " " * 6)
            lines.append(f"  {row.status:16}  {row.check:{width}}  {text}".rstrip())
        return "\n".join(lines)


_ORDER: tuple[Status, ...] = ("passed", "expected failure", "not applicable", "not run", "unexpected pass", "failed")
