"""The command line: a thin layer over the other packages."""

from metagrove.cli.app import main

__all__ = ["main"]
