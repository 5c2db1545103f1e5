"""The test suite."""

from tests import typecheck as typecheck  # jaxtyping looks the checker up as an attribute of this package
