"""`python -m oodlit`."""

import os
import sys

if __name__ == "__main__":
    # Python puts the current folder first, where optional imports of packages would find and run any file.
    if not getattr(sys.flags, "safe_path", False) and sys.path[0] in ("", os.getcwd()):  # noqa: PTH109 - pathlib later
        del sys.path[0]
    from oodlit.cli.main import main

    sys.exit(main())
