"""`python -m oxillama` is the command `oxillama`."""

import sys

from oxillama.cli import main

if __name__ == "__main__":
    sys.exit(main())
