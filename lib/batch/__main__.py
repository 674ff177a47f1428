"""Entry of ``python -m lib.batch``."""

import sys

from lib.batch.cli import main

if __name__ == "__main__":
    sys.exit(main())
