"""Names from strangers on the console, in the report and in CSV files; streams that are closed, full or ASCII."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from metagrove.cli import app
from metagrove.errors import RunError
from metagrove.notes import note
from metagrove.show.report_html import tag
from metagrove.terminal import TerminalConsole, say

NASTY = "[/red]<script>alert(1)</script>\x1b]0;title\x07[red]=cmd()"


def test_names_appear_as_they_are_on_the_console(capsys):
    from rich.table import Table

    table = Table(title=NASTY)
    table.add_column(NASTY)
    table.add_row(NASTY)
    console = TerminalConsole(width=300)
    console.print(table)
    console.print(NASTY, highlight=False, soft_wrap=True)
    say(NASTY)
    note(NASTY)
    told = capsys.readouterr()
    shown = NASTY.replace("\x1b", "\\x1b").replace("\x07", "\\x07")
    assert told.out.count(shown) == 5
    assert told.err.strip() == shown
    assert "\x1b]" not in told.out + told.err


def test_names_are_escaped_in_html():
    element = tag("p", NASTY, title=NASTY + '"')
    assert "<script>" not in element
    assert "&lt;script&gt;" in element
    assert "&quot;" in element


def test_errors_on_the_command_line_have_no_control_characters(capsys, tmp_path):
    assert app.main(["evaluate", str(tmp_path / "a\x1b[31mb")]) == RunError.exit_code
    told = capsys.readouterr().err
    assert "a\\x1b[31mb" in told
    assert "\x1b" not in told


def test_a_closed_standard_error_does_not_end_the_work(monkeypatch):
    class Closed:
        encoding = "utf-8"

        def write(self, _):
            raise BrokenPipeError

        flush = isatty = lambda self: False

    monkeypatch.setattr(sys, "stderr", Closed())
    note("nobody hears this")
    TerminalConsole(file=sys.stderr).print("nor this")


def run(*args, shell, **env):
    """A command of the shell, in which $M is metagrove; its exit code and what it said."""
    command = f'M="{sys.executable} -m metagrove"; {shell}'
    done = subprocess.run(
        ["bash", "-c", command, *args],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(Path(app.__file__).parents[2]), **env},
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize(
    ("shell", "code", "words"),
    [
        ("$M --help | head -1; exit ${PIPESTATUS[0]}", 0, ""),
        ("$M evaluate --help | true; exit ${PIPESTATUS[0]}", 0, ""),
        ("$M --help > /dev/full", 3, "standard output could not be read or written (No space left on device)"),
        ("PYTHONIOENCODING=ascii $M --help", 0, ""),
        ("$M --help >&-", 0, ""),
    ],
    ids=["closed", "closed at once", "full", "ascii", "none"],
)
def test_streams_that_do_not_work(shell, code, words):
    found, _, error = run(shell=shell)
    assert (found, error.strip().removeprefix("metagrove: ")) == (code, words)


def test_output_in_an_ascii_locale_replaces_characters():
    code, out, error = run(shell='$M data list --data "$0"', PYTHONIOENCODING="ascii")
    assert (code, error) == (0, "")
    assert "official datasets" in out


def test_predictions_in_csv_are_no_formulas_and_are_read_unchanged(tmp_path):
    from metagrove.serve.predict_files import written
    from metagrove.tables.csv_text import csv_text
    from metagrove.tables.read import read_table

    names = np.array(["=cmd()", "@bob", "-3", "plain", "'=x", "+1-2"], object)
    with (tmp_path / "a.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(map(csv_text, ["=id", "y"]))
        writer.writerows(zip(written(names), written(np.arange(6.0)), strict=True))
    text = (tmp_path / "a.csv").read_text().splitlines()
    assert text[:3] == ["'=id,y", "'=cmd(),0", "'@bob,1"]
    table = read_table(tmp_path / "a.csv")
    assert list(table.columns) == ["=id", "y"]
    assert table.columns["=id"].tolist() == names.tolist()


def test_what_is_imported_is_declared():
    import tomllib

    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {"requests", "urllib3"} <= {name.split(">")[0] for name in declared}
