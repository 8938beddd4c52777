"""Fetch an official archive: pooch keeps the file and its checksum, a broken transfer goes on where it stopped."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pooch
import requests
import urllib3
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from metagrove import files
from metagrove.errors import InputError
from metagrove.pools.official import Official
from metagrove.pools.pool import file_sha256

RECORD = "checksums.json"
CHUNK = 1 << 20
TIMEOUT = 60
BROKEN = (requests.RequestException, urllib3.exceptions.HTTPError)


def fetch(name: str, official: Official, folder: Path) -> Path:
    """The archive of a dataset in `folder`, fetched unless it is there and whole.

    Where no checksum is published, the first file's own is recorded beside it and asked of every later one.
    """
    if official.url is None or official.file is None:
        raise InputError(f"{name} has no official archive to fetch: {by_hand(name, official)}")
    pooch.get_logger().setLevel("WARNING")
    expected = official.checksum or recorded(folder).get(official.file)
    resuming = Resuming(folder / f"{official.file}.part", hint=by_hand(name, official))
    try:
        pooch.retrieve(official.url, expected, official.file, folder, downloader=cast(Any, resuming))
    except InputError:
        raise
    except ValueError as error:
        raise InputError(
            f"{official.url} is not the file expected, its checksum is not {expected}; it was thrown away: "
            f"{by_hand(name, official)}"
        ) from error
    except OSError as error:
        raise files.save_error(folder / official.file, error) from error
    if expected is None:
        record(folder, official.file)
    return folder / official.file


def by_hand(name: str, official: Official) -> str:
    """What a person can do without the link."""
    return f"get the file from {official.page} and pass it with `metagrove data prepare {name} --from FILE`"


def recorded(folder: Path) -> dict[str, str]:
    """Checksums of files that were fetched without a published one."""
    return files.read_json(folder / RECORD)["files"] if (folder / RECORD).exists() else {}


def record(folder: Path, file: str) -> None:
    """Remember a file's checksum, and say so."""
    checksum = f"sha256:{file_sha256(folder / file)}"
    files.write_json(folder / RECORD, {"format": 1, "files": {**recorded(folder), file: checksum}})
    Console(stderr=True).print(
        f"no checksum of {file} is published; recorded {checksum} in {folder / RECORD}", soft_wrap=True
    )


class Resuming:
    """A downloader for pooch: bytes go to a .part file, which a later call continues by an HTTP range request."""

    def __init__(self, part: Path, hint: str):
        self.part = part
        self.hint = hint

    def __call__(self, url: str, output_file: Any, pooch: Any) -> None:
        """Fetch url into output_file."""
        try:
            self.get(url)
        except BROKEN as error:
            had = self.size()
            again = f"; {had:,} bytes are kept, the same command goes on from there" if had else ""
            raise InputError(f"{url} could not be fetched ({reason(error)}){again}: {self.hint}") from error
        os.replace(self.part, output_file)

    def size(self) -> int:
        """Bytes fetched so far."""
        return self.part.stat().st_size if self.part.exists() else 0

    def get(self, url: str) -> None:
        """Append what is missing; a server that does not know ranges, or a part too long, starts again."""
        had = self.size()
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={had}-"} if had else {})
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
            if not had or response.status_code != requests.codes.requested_range_not_satisfiable:
                response.raise_for_status()
                goes_on = response.headers.get("Content-Range", "").startswith(f"bytes {had}-")
                self.save(response, had if goes_on else 0)
            elif response.headers.get("Content-Range") != f"bytes */{had}":
                self.part.unlink()
                self.get(url)

    def save(self, response: requests.Response, had: int) -> None:
        """Write the body after the first `had` bytes. It is not decoded: some servers label a .tar.gz as encoded."""
        length = response.headers.get("Content-Length")
        columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        console = Console(stderr=True)
        with (
            self.part.open("ab" if had else "wb") as file,
            Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar,
        ):
            task = bar.add_task(self.part.stem, total=had + int(length) if length else None, completed=had)
            for chunk in chunks(response):
                file.write(chunk)
                bar.advance(task, len(chunk))


def chunks(response: requests.Response) -> Iterator[bytes]:
    """The body as it comes over the wire; a body shorter than announced is an error."""
    return response.raw.stream(CHUNK, decode_content=False)


def reason(error: Exception) -> str:
    """Why a link is dead, in a few words."""
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"the server says {error.response.status_code} {error.response.reason}"
    return "no connection" if isinstance(error, requests.ConnectionError) else str(error) or type(error).__name__
