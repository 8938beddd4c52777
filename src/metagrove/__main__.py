"""`python -m metagrove`."""

import sys

from metagrove.cli import main

sys.exit(main())
