"""`python -m metagrove`."""

import sys

from metagrove.cli.app import main

sys.exit(main())
