"""`python -m layoutgemm`: the command line without its script on the path."""

import sys

from .cli.main import main

if __name__ == "__main__":
    sys.exit(main())
