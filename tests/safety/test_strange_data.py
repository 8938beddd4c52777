"""Archives, images and tables from strangers: refused in words, before memory and time are spent."""

import bz2
import io
import os
import resource
import tarfile
import time
import zipfile
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from metagrove.errors import InputError, RunError
from metagrove.pools import pool
from metagrove.pools.archive import contents, listing
from metagrove.pools.image import decode
from metagrove.pools.limits import Limits
from metagrove.pools.prepare import prepare
from metagrove.serve import levels
from metagrove.tables import infer, read
from metagrove.tables.cells import each_once
from metagrove.tables.csv_text import csv_text, plain_text
from metagrove.tables.read import read_table
from metagrove.tables.settings import TableData
from metagrove.tables.tasks import checksum, read_tasks, tables_of_folder


@pytest.fixture(autouse=True)
def little_memory():
    """No test of this file may take more than 500 MB or 10 s of a core."""
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 * 1024
    assert time.process_time() - began < 10


def all_contents(path, limits=Limits()):  # noqa: B008
    return dict(contents(path, listing(path, limits).images, limits))


def zipped(path, name, size, declared=None):
    """A zip file with zeros, whose header may lie about their number."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, bytes(size))
    if declared is not None:
        real, false = (number.to_bytes(4, "little") for number in (size, declared))
        path.write_bytes(path.read_bytes().replace(real, false))
    return path


def bomb(path, declared):
    """A zip file of 1 MB with a member of 1 GB: a block of zeros is compressed once and stands there 1,000 times."""
    pack = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = pack.compress(bytes(1_000_000)) + pack.flush(zlib.Z_FULL_FLUSH)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("c/a.png", block * 1000 + pack.flush())
    content = bytearray(path.read_bytes())
    central = content.rindex(b"PK\x01\x02")
    for method, size in ((8, 22), (central + 10, central + 24)):
        content[method : method + 2] = zipfile.ZIP_DEFLATED.to_bytes(2, "little")
        content[size : size + 4] = declared.to_bytes(4, "little")
    path.write_bytes(content)
    return path


def test_a_zip_of_a_megabyte_that_unpacks_to_a_gigabyte_is_refused(tmp_path):
    path = bomb(tmp_path / "a.zip", 10**9)
    assert path.stat().st_size < 1_100_000
    with pytest.raises(InputError, match=r"holds 'c/a.png' of 1,000 MB, at most 64 MB are read: .*--max-file-mb"):
        all_contents(path)
    with pytest.raises(InputError, match="unpacks to more than 200 times its size"):
        all_contents(bomb(tmp_path / "b.zip", 2 * 10**9), Limits(max_file_mb=4000.0))
    for lie in (10, 60_000_000):
        with pytest.raises(InputError, match="cannot be read"):
            all_contents(bomb(tmp_path / "b.zip", lie))


def test_the_largest_file_is_a_setting(tmp_path):
    path = zipped(tmp_path / "a.zip", "c/a.png", 3_000_000)
    with pytest.raises(InputError, match="at most 1 MB are read"):
        all_contents(path, Limits(max_file_mb=1.0))
    assert all_contents(path, Limits(max_file_mb=3.0)) == {"c/a.png": bytes(3_000_000)}


def test_a_zip_that_lies_about_its_size_is_refused(tmp_path):
    path = zipped(tmp_path / "a.zip", "c/a.png", 3_000_000, declared=10)
    with pytest.raises(InputError):
        all_contents(path, Limits(max_file_mb=1.0))


def test_archives_have_a_limit_in_all(tmp_path):
    path = zipped(tmp_path / "a.zip", "c/a.bin", 3_000_000)
    with pytest.raises(InputError, match=r"unpacks to more than 0.001 GB.*--max-total-gb"):
        listing(path, Limits(max_total_gb=0.001))


def sparse_tar(path, size):
    """A tar of 10 kB with a member of any size: all of it a hole."""
    info = tarfile.TarInfo("c/a.png")
    info.size = 0
    info.pax_headers = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.size": str(size)}
    info.pax_headers |= {"GNU.sparse.numblocks": "1", "GNU.sparse.map": f"{size},0", "GNU.sparse.name": "c/a.png"}
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info, io.BytesIO())
    return path


@pytest.mark.parametrize("size", [3 * 10**9, 64 * 10**9, 10**18])
def test_a_tar_with_a_sparse_member_is_refused(tmp_path, size):
    with pytest.raises(InputError, match=r"at most 64 MB are read|unpacks to more than|cannot be read"):
        all_contents(sparse_tar(tmp_path / "a.tar", size))


def test_a_tar_with_an_endless_header_is_refused(tmp_path):
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 8 * 10**9
    (tmp_path / "a.tar").write_bytes(info.tobuf() + bytes(10_240))
    with pytest.raises(InputError):
        all_contents(tmp_path / "a.tar")


@pytest.mark.parametrize("name", ["a.tar", "a.zip", "a.tar.gz", "a.png"])
def test_pipes_and_noise_are_refused(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match="is not a plain file"):
        listing(tmp_path / name)
    (tmp_path / f"noise-{name}").write_bytes(np.random.default_rng(0).bytes(5000))
    with pytest.raises(InputError):
        listing(tmp_path / f"noise-{name}")


def png_of(width, height):
    """A PNG file that declares a size; its pixels are not there."""
    import struct

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_large_images_are_refused_by_their_declared_size():
    with pytest.raises(ValueError, match=r"it has 13,000 × 13,000 pixels, at most 64 million .*--max-megapixels"):
        decode(png_of(13_000, 13_000), 8)


def images(path):
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(6):
            content = io.BytesIO()
            Image.fromarray(np.full((6, 6, 3), 40 * number, np.uint8)).save(content, "PNG")
            archive.writestr(f"class-{number % 3}/{number}.png", content.getvalue())
    return path


def test_half_pools_are_removed_and_pools_put_aside_come_back(tmp_path):
    data, how = tmp_path / "data", {"size": 4, "min_images": 2, "ways": 1, "splits": (1.0, 1.0, 1.0)}
    source = images(tmp_path / "a.zip")
    prepare("mine", source, data=data, **how)
    (data / ".other-4.x1.tmp").mkdir()
    (data / ".other-4.x1.tmp" / "images.npy").write_bytes(b"half")
    (data / "mine-4").rename(data / ".mine-4.old")
    assert pool.read("mine", 4, data).name == "mine"
    prepare("mine2", source, data=data, **how)
    assert sorted(path.name for path in data.iterdir()) == ["mine-4", "mine2-4"]


def test_an_index_from_a_stranger_is_checked(tmp_path):
    from strangers import seal

    from metagrove.files import read_json

    data = tmp_path / "data"
    prepare("mine", images(tmp_path / "a.zip"), data=data, size=4, min_images=2, ways=1, splits=(1.0, 1.0, 1.0))
    index = read_json(data / "mine-4" / "index.json")
    header = b"\x93NUMPY\x02\0" + (9000).to_bytes(4, "little") + b"{" + b"(" * 8999
    for content in (b"", header, header[:50]):
        whole = (data / "mine-4" / "images.npy").read_bytes()
        (data / "mine-4" / "images.npy").write_bytes(content)
        with pytest.raises(RunError, match="cannot be read"):
            pool.read("mine", 4, data)
        (data / "mine-4" / "images.npy").write_bytes(whole)
    for change in (
        {"classes": [1]},
        {"classes": None},
        {"sha256": 3},
        {"classes": [{**index["classes"][0], "start": 5}]},
    ):
        seal(data / "mine-4" / "index.json", {**index, **change})
        with pytest.raises(RunError):
            pool.read("mine", 4, data)


def test_long_cells_are_quoted_short(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("t,x,y\n" + "a,1,2\n" * 9 + f"a,{'9' * 120_000},1\n")
    schema_error = None
    try:
        from metagrove.tables.cells import numbers

        table = read_table(path)
        numbers(table.columns["x"], "x", str(path), table.rows.tolist())
    except InputError as error:
        schema_error = str(error)
    assert schema_error is not None
    assert len(schema_error) < 300 + len(str(path))


@pytest.mark.parametrize("count", [10_000, 60_000])
def test_many_columns_are_read_in_linear_time(tmp_path, count):
    path = tmp_path / "a.csv"
    names = ",".join(f"x{i}" for i in range(count))
    row = ",".join(["1"] * count)
    path.write_text(f"t,{names},y\n" + "".join(f"{task},{row},2\n" for task in "aabbccddeeff"))
    tasks = read_tasks(TableData(tasks=str(path), task_column="t", target=("y",), shots=1))
    assert (len(tasks.split), len(tasks.roles.inputs)) == (6, count)
    path.write_text(f"t,{names},x5\n{row},1,1\n")
    with pytest.raises(InputError, match=r"are all called 'x5'"):
        read_table(path)


def test_endless_names_of_tasks_are_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("t,x,y\n" + "a,1,2\n" * 8000 + f"{'b' * 100_000},1,2\n" * 8)
    with pytest.raises(InputError, match=r"the task's name 'b+… \(100,000 characters\) is too long") as caught:
        read_tasks(TableData(tasks=str(path), task_column="t", target=("y",)))
    assert len(str(caught.value)) < 400 + len(str(path))


def test_more_inputs_than_fit_in_memory_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    path.write_text(
        "t,a,b,y\n" + "".join(f"{task},{'xz'[row % 2]},{row},{row}\n" for task in "klmnop" for row in range(4))
    )
    data = TableData(tasks=str(path), task_column="t", target=("y",), shots=1)
    tasks = read_tasks(data)
    assert infer.infer_schema(data, tasks).x_dim == 3
    monkeypatch.setattr(infer, "MOST_INPUTS", 2)
    with pytest.raises(InputError, match=r"2 inputs are encoded as 3 values, at most 2 fit in memory: .*--inputs NAME"):
        infer.infer_schema(data, tasks)


def test_columns_and_categories_have_short_names(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(f"t,{'x' * 100_000},y\na,1,2\n")
    with pytest.raises(InputError, match=r"the column's name 'x+… \(100,000 characters\) is too long"):
        read_table(path)
    path.write_text("t,x,y\n" + f"a,{'b' * 2_000},2\n")
    with pytest.raises(InputError, match=r"the column 'x' has texts that are too long, 'b+…"):
        infer.add_categories(set(), read_table(path).columns["x"], "x", str(path))


def test_text_that_is_repeated_takes_no_memory(tmp_path):
    cell, rows = "b" * 100_000, 20
    (tmp_path / "a.csv").write_text("t,x\n" + f"a,{cell}\n" * rows)
    pq.write_table(pa.table({"t": ["a"] * rows, "x": pa.array([cell, None] * (rows // 2))}), tmp_path / "a.parquet")
    for name, expected in (("a.csv", [cell] * rows), ("a.parquet", [cell, None] * (rows // 2))):
        found = read_table(tmp_path / name).columns["x"].tolist()
        assert found == expected
        assert len(set(map(id, found))) == len(set(expected))  # every equal cell is the same object


def test_a_text_that_is_repeated_is_looked_at_once():
    calls = []
    assert list(each_once(lambda cell: calls.append(cell) or cell, np.array(["a", "b", "a", 1, 1], object))) == [
        *("a", "b", "a", 1, 1)
    ]
    assert calls == ["a", "b", 1, 1]


def test_endless_lines_and_tables_are_refused(tmp_path, monkeypatch):
    with (tmp_path / "a.csv").open("wb") as file:
        file.write(b"t,x\na,1\n")
        file.truncate(20 * 10**9)
    with pytest.raises(InputError, match="has a line of 16,777,216 characters or more"):
        read_table(tmp_path / "a.csv")
    monkeypatch.setattr(read, "MAX_CELLS", 10**6)
    pq.write_table(pa.table({"t": pa.nulls(2 * 10**6, pa.int32())}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="has more than 1,000,000 cells"):
        read_table(tmp_path / "a.parquet")
    monkeypatch.setattr(read, "MAX_BLOCK_BYTES", 10)
    with pytest.raises(InputError, match="unpacks to blocks above 10 bytes"):
        read_table(tmp_path / "a.parquet")


def test_only_plain_files_are_tables(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n3,4\n5,6\n")
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "zero.csv").symlink_to("/dev/zero")
    with pytest.raises(InputError, match="is not a plain file"):
        read_table(tmp_path / "pipe.csv")
    notes = []
    assert [table.names.tolist() for table in tables_of_folder(tmp_path, notes)] == [["a"]]
    assert "skipped files that are not tables: 'pipe.csv', 'zero.csv'" in notes[0]
    assert len(checksum(tmp_path)) == 64


def test_an_archive_does_not_unpack_to_many_times_its_size(tmp_path):
    with bz2.open(tmp_path / "a.tar.bz2", "wb") as file:
        info = tarfile.TarInfo("c/a.bin")
        info.size = 150 * 10**9
        file.write(info.tobuf(tarfile.GNU_FORMAT))
    with pytest.raises(InputError, match="unpacks to more than 200 times its size"):
        listing(tmp_path / "a.tar.bz2")


def test_slopes_of_many_inputs_are_those_of_few(monkeypatch):
    x, y = np.random.default_rng(0).normal(size=(2, 6, 9))
    expected = levels.level_and_slopes(x, y[:, :2])
    monkeypatch.setattr(levels, "MANY_INPUTS", 3)
    np.testing.assert_allclose(levels.level_and_slopes(x, y[:, :2]), expected, rtol=1e-6)


@settings(max_examples=300, database=None, derandomize=True, deadline=None)
@given(st.text() | st.from_regex(r"'*[=+\-@\t\r'0-9.]*", fullmatch=True))
def test_text_in_csv_is_no_formula_and_is_read_unchanged(text):
    written = csv_text(text)
    assert plain_text(written) == text
    if written[:1] in tuple("=+-@\t\r"):
        float(written)  # raises for anything but a number
