"""`python -m overtone` is the `overtone` command."""

import sys

from overtone.cli import main

if __name__ == "__main__":
    sys.exit(main())
