"""metagrove data list | prepare | verify."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import tyro

DAMAGED = 3
USAGE = """\
metagrove data list                                  official datasets, and the pools prepared here
metagrove data prepare NAME --from FOLDER_OR_ARCHIVE make a pool of images (--download fetches an official one)
metagrove data verify [NAME]                         compute checksums anew
"""


@dataclasses.dataclass(frozen=True)
class DataList:
    """The official datasets and where they come from, and the pools that are prepared."""

    data: Path = Path("data")
    """Where the pools lie."""

    def __call__(self) -> None:
        from metagrove.show.pools import print_official, print_pools

        print_official()
        print_pools(self.data)


@dataclasses.dataclass(frozen=True)
class DataPrepare:
    """Make a pool of images, once, from an official archive or from class folders of your own."""

    name: tyro.conf.Positional[str]
    """bird, texture, aircraft, fungi, mini-imagenet, or a name for images of your own."""
    source: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """A folder, tar or zip: class/*.jpg, train|val|test/class/*.jpg, or an official archive as it was fetched."""
    download: bool = False
    """Fetch the official archive, with checksum and resume, into DATA/archives."""
    url: str | None = None
    """Fetch it from this mirror; the checksum stays the official one."""
    size: int = 84
    """Width and height in pixels."""
    min_images: int = 16
    """Images that each class must have: shots and queries of a task."""
    ways: int = 5
    """Classes that each meta-split must have."""
    splits: tuple[float, float, float] = (64.0, 16.0, 20.0)
    """Shares of train, validation and test classes where the source has no split."""
    seed: int = 0
    """Decides that split."""
    force: bool = False
    """Replace a pool that is there already."""
    data: Path = Path("data")
    """Where the pools lie."""

    def __call__(self) -> None:
        from metagrove.pools import pool, prepare

        settings = {"min_images": self.min_images, "ways": self.ways, "splits": self.splits, "seed": self.seed}
        prepare.check(self.name, self.size, pool.folder_of(self.name, self.size, self.data), self.force)
        folder = prepare.prepare(
            self.name, self.find_source(), size=self.size, data=self.data, force=self.force, **settings
        )
        made = pool.read(self.name, self.size, self.data)
        print(f"{folder}: {pool.describe(made)}")
        for note in pool.notes(folder):
            print(f"  {note}")

    def find_source(self) -> Path:
        """What was passed, or the official archive, fetched if it is not there."""
        from metagrove.errors import InputError
        from metagrove.pools.download import fetch
        from metagrove.pools.official import OFFICIAL

        if (self.source is None) != self.download:
            raise InputError("give either --from FOLDER_OR_ARCHIVE or --download, not both and not neither")
        if self.source is not None:
            return self.source
        if self.name not in OFFICIAL:
            raise InputError(f"--download knows {', '.join(OFFICIAL)}; got {self.name!r}: pass its images with --from")
        official = OFFICIAL[self.name]
        return fetch(self.name, official.at(self.url), self.data / "archives")


@dataclasses.dataclass(frozen=True)
class DataVerify:
    """Compute the checksums of pools anew."""

    name: tyro.conf.Positional[str | None] = None
    """Which pool; all of them by default."""
    size: int | None = None
    """Which size; all of them by default."""
    data: Path = Path("data")
    """Where the pools lie."""

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
        """Whether a pool is damaged; says so either way."""
        from metagrove.errors import RunError
        from metagrove.pools import pool

        try:
            print(f"ok       {name} {size}: {pool.describe(pool.verify(name, size, self.data))}")
        except RunError as error:
            print(f"damaged  {name} {size}: {error}")
            return True
        return False


COMMANDS = {"list": DataList, "prepare": DataPrepare, "verify": DataVerify}


def main(args: list[str], config: tuple = ()) -> int:
    """Hand the arguments to the command they begin with."""
    if not args or args[0] not in COMMANDS:
        asked = bool(args) and args[0] in ("-h", "--help")
        print(USAGE, end="", file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    command, *rest = args
    return tyro.cli(COMMANDS[command], args=rest, prog=f"metagrove data {command}", config=config)() or 0
