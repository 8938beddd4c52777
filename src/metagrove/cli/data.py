"""metagrove data list | prepare | verify."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import tyro

from metagrove.pools.limits import Limits
from metagrove.terminal import say

DAMAGED = 3
USAGE = """\
metagrove data list                                  list official datasets and prepared pools
metagrove data prepare NAME --from FOLDER_OR_ARCHIVE prepare a pool of images (--download gets an official archive)
metagrove data verify [NAME]                         verify the checksums of pools
"""


@dataclasses.dataclass(frozen=True)
class DataList:
    """List the official datasets with their origin, and the prepared pools."""

    data: Path = Path("data")
    """Folder of the pools."""

    def __call__(self) -> None:
        from metagrove.show.pools import print_official, print_pools

        print_official()
        print_pools(self.data)


@dataclasses.dataclass(frozen=True)
class DataPrepare:
    """Prepare a pool of images from an official archive or from your own class folders."""

    name: tyro.conf.Positional[str]
    """bird, texture, aircraft, fungi, mini-imagenet, or a name for your own images."""
    source: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """Folder, tar or zip file: class/*.jpg, train|val|test/class/*.jpg, or an official archive as downloaded."""
    download: bool = False
    """Download the official archive to DATA/archives, with checksum and resume."""
    url: str | None = None
    """Download from this mirror; the official checksum still applies."""
    size: int = 84
    """Height and width in pixels."""
    min_images: int = 16
    """Minimum number of images per class: shots and queries of a task."""
    ways: int = 5
    """Minimum number of classes per meta-split."""
    splits: tuple[float, float, float] = (64.0, 16.0, 20.0)
    """Proportions of training, validation and test classes, if the source defines no split."""
    seed: int = 0
    """Random seed of that split."""
    force: bool = False
    """Replace an existing pool."""
    limits: Limits = Limits()
    """Maximum size of the source and its images."""
    data: Path = Path("data")
    """Folder of the pools."""

    def __call__(self) -> None:
        from metagrove.pools import pool, prepare

        settings = {"min_images": self.min_images, "ways": self.ways, "splits": self.splits, "seed": self.seed}
        settings |= {"force": self.force, "limits": self.limits}
        prepare.check(self.name, self.size, pool.folder_of(self.name, self.size, self.data), self.force)
        folder = prepare.prepare(self.name, self.find_source(), size=self.size, data=self.data, **settings)
        made = pool.read(self.name, self.size, self.data)
        say(f"{folder}: {pool.describe(made)}")
        for note in pool.notes(folder):
            say(f"  {note}")

    def find_source(self) -> Path:
        """Return the source that was passed, or the official archive, downloaded if necessary."""
        from metagrove.errors import InputError
        from metagrove.pools.download import fetch
        from metagrove.pools.official import OFFICIAL

        if (self.source is None) != self.download:
            raise InputError("give either --from FOLDER_OR_ARCHIVE or --download")
        if self.source is not None:
            return self.source
        if self.name not in OFFICIAL:
            raise InputError(
                f"--download supports {', '.join(OFFICIAL)}; got {self.name!r}: pass its images with --from"
            )
        official = OFFICIAL[self.name]
        return fetch(self.name, official.at(self.url), self.data / "archives")


@dataclasses.dataclass(frozen=True)
class DataVerify:
    """Verify the checksums of pools."""

    name: tyro.conf.Positional[str | None] = None
    """Name of the pool; by default all of them."""
    size: int | None = None
    """Size of the images; by default all of them."""
    data: Path = Path("data")
    """Folder of the pools."""

    def __call__(self) -> int:
        from metagrove.errors import InputError
        from metagrove.pools import pool

        found = [
            (name, size)
            for name, size in pool.prepared(self.data)
            if self.name in (None, name) and self.size in (None, size)
        ]
        if not found:
            raise InputError(f"no such pool in {self.data}: `metagrove data list` shows what is prepared")
        return DAMAGED if sum(self.damaged(name, size) for name, size in found) else 0

    def damaged(self, name: str, size: int) -> bool:
        """Print whether a pool is damaged, and return it."""
        from metagrove.errors import RunError
        from metagrove.pools import pool

        try:
            say(f"ok       {name} {size}: {pool.describe(pool.verify(name, size, self.data))}")
        except RunError as error:
            say(f"damaged  {name} {size}: {error}")
            return True
        return False


COMMANDS = {"list": DataList, "prepare": DataPrepare, "verify": DataVerify}


def main(args: list[str], config: tuple = ()) -> int:
    """Run the command that the arguments begin with."""
    if not args or args[0] not in COMMANDS:
        help_requested = bool(args) and args[0] in ("-h", "--help")
        print(USAGE, end="", file=sys.stdout if help_requested else sys.stderr)
        return 0 if help_requested else 2
    command, *rest = args
    return tyro.cli(COMMANDS[command], args=rest, prog=f"metagrove data {command}", config=config)() or 0
