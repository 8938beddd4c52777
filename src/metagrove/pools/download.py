"""Download an official archive with pooch: the file is cached and checksummed, an interrupted transfer is resumed."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pooch
import requests
import urllib3
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from metagrove import files
from metagrove.errors import InputError
from metagrove.pools.official import Official
from metagrove.pools.pool import file_sha256
from metagrove.terminal import TerminalConsole

RECORD = "checksums.json"
CHUNK = 1 << 20
TIMEOUT = 60
BROKEN = (requests.RequestException, urllib3.exceptions.HTTPError)


def fetch(name: str, official: Official, folder: Path) -> Path:
    """Return the path of a dataset's archive in `folder`, downloading it unless it is present and intact.

    Where no checksum is published, the checksum of the first download is recorded next to the file and required of
    every later one.

    Raises:
        InputError: If the dataset has no archive, the download fails, or the checksum differs.
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
            f"{official.url} is not the expected file: its checksum is not {expected}, and it was deleted; "
            f"{by_hand(name, official)}"
        ) from error
    except OSError as error:
        raise files.save_error(folder / official.file, error) from error
    if expected is None:
        record(folder, official.file)
    return folder / official.file


def by_hand(name: str, official: Official) -> str:
    """Describe how to get the archive without the link."""
    return f"get the file from {official.page} and pass it with `metagrove data prepare {name} --from FILE`"


def recorded(folder: Path) -> dict[str, str]:
    """Read the checksums of files that have no published one."""
    found = files.read_json(folder / RECORD).get("files") if (folder / RECORD).exists() else {}
    return found if isinstance(found, dict) else {}


def record(folder: Path, file: str) -> None:
    """Record the checksum of a downloaded file and report it."""
    checksum = f"sha256:{file_sha256(folder / file)}"
    files.write_json(folder / RECORD, {"format": 1, "files": {**recorded(folder), file: checksum}})
    TerminalConsole(stderr=True).print(
        f"no checksum of {file} is published; recorded {checksum} in {folder / RECORD}", soft_wrap=True
    )


class Resuming:
    """Downloader for pooch that writes to a .part file, which a later call continues by an HTTP range request."""

    def __init__(self, part: Path, hint: str):
        self.part = part
        self.hint = hint

    def __call__(self, url: str, output_file: Any, pooch: Any) -> None:
        """Download `url` to `output_file`."""
        try:
            self.get(url)
        except BROKEN as error:
            had = self.size()
            again = f"; {had:,} bytes are stored, run the same command to resume" if had else ""
            raise InputError(f"{url} could not be downloaded ({reason(error)}){again}: {self.hint}") from error
        os.replace(self.part, output_file)

    def size(self) -> int:
        """Return the number of bytes downloaded so far."""
        return self.part.stat().st_size if self.part.exists() else 0

    def get(self, url: str) -> None:
        """Append the missing bytes; start again if the server supports no ranges or the .part file is too long."""
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
        """Write the body after the first `had` bytes, undecoded: some servers label a .tar.gz as gzip-encoded."""
        length = response.headers.get("Content-Length")
        columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        console = TerminalConsole(stderr=True)
        with (
            self.part.open("ab" if had else "wb") as file,
            Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar,
        ):
            task = bar.add_task(self.part.stem, total=had + int(length) if length else None, completed=had)
            for chunk in chunks(response):
                file.write(chunk)
                bar.advance(task, len(chunk))


def chunks(response: requests.Response) -> Iterator[bytes]:
    """Iterate over the raw body; a body shorter than announced raises an error."""
    return response.raw.stream(CHUNK, decode_content=False)


def reason(error: Exception) -> str:
    """Describe why a download failed."""
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"the server answered {error.response.status_code} {error.response.reason}"
    return "no connection" if isinstance(error, requests.ConnectionError) else str(error) or type(error).__name__
