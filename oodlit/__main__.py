"""`python -m oodlit`."""

import sys

from oodlit.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
