"""Pools of images: every layout, every failure, downloads from a server on loopback."""

import contextlib
import dataclasses
import hashlib
import http.server
import io
import json
import tarfile
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from metagrove.cli.app import main
from metagrove.errors import InputError, RunError
from metagrove.pools import official, pool
from metagrove.pools.download import fetch
from metagrove.pools.image import decode
from metagrove.pools.official import OFFICIAL, splits
from metagrove.pools.prepare import prepare

RED, BLUE, GREEN = (220, 20, 20), (20, 20, 220), (20, 200, 20)


def image(colour=RED, size=(8, 8), kind="PNG", mode="RGB", **options) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, colour).convert(mode).save(file, kind, **options)
    return file.getvalue()


def framed(box, size=(24, 20)) -> bytes:
    """Blue, and red within the box."""
    image = Image.new("RGB", size, BLUE)
    image.paste(RED, box)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


PLAIN = image()


def as_tar(path: Path, files: dict[str, bytes], mode="w") -> Path:
    with tarfile.open(path, mode) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def as_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def as_folder(path: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def class_names(name: str) -> list[str]:
    return [class_name for names in splits()[name].values() for class_name in names]


def cub_files(names=None, count=2) -> dict[str, bytes]:
    """CUB_200_2011.tgz as it is, small; one class that the paper does not use."""
    names = [*class_names("bird"), "Laysan Albatross"] if names is None else names
    rows = {"images": [], "bounding_boxes": [], "image_class_labels": [], "classes": []}
    files, number = {"attributes.txt": b"1 has_bill_shape::curved\n"}, 0
    for label, name in enumerate(names, 1):
        folder = f"{label:03}.{name.replace(' ', '_')}"
        rows["classes"].append(f"{label} {folder}")
        for i in range(count):
            number += 1
            path = f"{folder}/{name.replace(' ', '_')}_{i:04}_{number}.jpg"
            rows["images"].append(f"{number} {path}")
            rows["bounding_boxes"].append(f"{number} 4.0 5.0 10.0 12.0")
            rows["image_class_labels"].append(f"{number} {label}")
            files[f"CUB_200_2011/images/{path}"] = framed((4, 5, 14, 17))
    tables = {f"CUB_200_2011/{name}.txt": "\n".join(lines).encode() for name, lines in rows.items()}
    return {**files, **tables, "CUB_200_2011/parts/parts.txt": b"1 back\n"}


def fgvc_files() -> dict[str, bytes]:
    """fgvc-aircraft-2013b.tar.gz as it is, small, with the archive's own spelling of variants."""
    own = {"F-16A-B": "F-16A/B", "F-A-18": "F/A-18", "Boeing-717": "Boeing 717", "Model-B200": "Model B200"}
    rows, files = {"variant_trainval": [], "variant_test": [], "box": []}, {}
    for i, name in enumerate(class_names("aircraft") * 2):
        number = f"{i:07}"
        rows["variant_trainval" if i % 3 else "variant_test"].append(f"{number} {own.get(name, name)}")
        rows["box"].append(f"{number} 5 6 14 17")  # first and last pixel, counted from 1
        files[f"fgvc-aircraft-2013b/data/images/{number}.jpg"] = framed((4, 5, 14, 17))
    tables = {f"fgvc-aircraft-2013b/data/images_{name}.txt": "\n".join(lines).encode() for name, lines in rows.items()}
    return {**files, **tables, "fgvc-aircraft-2013b/README.md": b"Aircraft"}


def dtd_files() -> dict[str, bytes]:
    files = {f"dtd/images/{name}/{name}_{i:04}.jpg": PLAIN for name in class_names("texture") for i in range(2)}
    return {**files, "dtd/images/waffled/.directory": b"", "dtd/labels/train1.txt": b"banded/banded_0001.jpg\n"}


def fungi_files() -> dict[str, bytes]:
    names = [*class_names("fungi"), "Amanita nobody"]
    return {f"images/{10000 + i}_{name.replace(' ', '_')}/{i}.JPG": PLAIN for i, name in enumerate(names)}


def ravi_files() -> dict[str, bytes]:
    files = {}
    for part, split in (("train", "train"), ("val", "validation"), ("test", "test")):
        rows = ["filename,label"]
        for name in splits()["mini-imagenet"][split]:
            rows.append(f"{name}00000001.jpg,{name}")
            files[f"images/{name}00000001.jpg"] = PLAIN
        files[f"{part}.csv"] = "\n".join(rows).encode()
    return files


ARCHIVES = {
    "bird": (cub_files, "w:gz"),
    "texture": (dtd_files, "w:gz"),
    "aircraft": (fgvc_files, "w:gz"),
    "fungi": (fungi_files, "w:gz"),
    "mini-imagenet": (ravi_files, "w"),
}


def own_files(classes=6, count=3, split=True, above="", content=PLAIN) -> dict[str, bytes]:
    """Images of a person's own; without a split, three times as many classes."""
    parts = ("train/", "val/", "test/") if split else ("", "", "")
    return {
        f"{above}{part}class {p}{c} é/im age {i}.png": content
        for p, part in enumerate(parts)
        for c in range(classes)
        for i in range(count)
    }


def splits_of(opened: pool.Pool) -> dict[str, list[str]]:
    return {split: [one.name for one in opened.classes if one.split == split] for split in pool.SPLITS}


def left(data: Path) -> list[str]:
    return sorted(str(path.relative_to(data)) for path in data.rglob("*")) if data.exists() else []


@pytest.mark.parametrize("name", OFFICIAL)
def test_official_archives_give_the_papers_classes(name, tmp_path):
    files, mode = ARCHIVES[name]
    source = as_tar(tmp_path / "archive", files(), mode)
    folder = prepare(name, source, size=6, data=tmp_path / "data", min_images=1)
    assert folder == tmp_path / "data" / f"{name}-6"
    opened = pool.verify(name, 6, tmp_path / "data")
    assert splits_of(opened) == splits()[name]
    # cropped where there are boxes, and then nothing blue is left at any edge
    np.testing.assert_allclose(opened.images, np.broadcast_to(RED, opened.images.shape), atol=3)
    about = json.loads((folder / "index.json").read_text())["about"]
    assert about["splits"] == "the paper's classes by name"
    assert about["frame"] == ("bounding box" if name in ("bird", "aircraft") else "whole")


def test_split_sizes_are_the_papers():
    sizes = {name: tuple(len(names) for names in parts.values()) for name, parts in splits().items()}
    assert sizes.pop("texture") == (30, 7, 10)
    assert set(sizes.values()) == {(64, 16, 20)}
    assert all(len({official.normal(c) for c in class_names(name)}) == len(class_names(name)) for name in splits())


def test_the_first_images_by_name_are_taken_up_to_the_papers_number(tmp_path, monkeypatch):
    monkeypatch.setitem(OFFICIAL, "texture", dataclasses.replace(OFFICIAL["texture"], images=2))
    files = {
        f"dtd/images/{name}/{i}.png": image(GREEN if i == 3 else RED)
        for name in class_names("texture")
        for i in (3, 2, 1)
    }
    prepare("texture", as_tar(tmp_path / "t.tar", files), size=4, data=tmp_path, min_images=1)
    images = pool.read("texture", 4, tmp_path).images
    assert images.shape == (94, 4, 4, 3)
    np.testing.assert_array_equal(images, np.broadcast_to(np.uint8(RED), images.shape))


def test_missing_classes_are_all_named_and_nothing_is_left(tmp_path):
    names = [name for name in class_names("bird") if name not in ("Mallard", "Ovenbird", "Winter Wren")]
    source = as_tar(tmp_path / "CUB.tgz", cub_files(names, count=1), "w:gz")
    with pytest.raises(InputError, match=r"(?s)'Mallard' of the paper's train.*'Ovenbird'.*validation.*'Winter Wren'"):
        prepare("bird", source, data=tmp_path / "data", min_images=1)
    assert left(tmp_path / "data") == []


def test_many_problems_are_counted(tmp_path):
    with pytest.raises(InputError, match="and 93 more") as error:
        prepare("fungi", as_zip(tmp_path / "x.zip", own_files(4, split=False)), data=tmp_path / "data", min_images=1)
    assert "images of your own need another name" in str(error.value)


def test_images_listed_but_not_there_are_named(tmp_path):
    files = cub_files(count=1)
    gone = next(path for path in files if path.endswith("_1.jpg"))
    del files[gone]
    with pytest.raises(InputError, match=f"{gone} is listed but missing"):
        prepare("bird", as_tar(tmp_path / "a.tar", files), data=tmp_path / "data", min_images=1)


@pytest.mark.parametrize("table", ["images", "classes", "image_class_labels"])
def test_a_missing_table_is_named(table, tmp_path):
    files = cub_files(count=1)
    del files[f"CUB_200_2011/{table}.txt"]
    with pytest.raises(InputError, match=f"no CUB_200_2011/{table}.txt"):
        prepare("bird", as_tar(tmp_path / "a.tar", files), data=tmp_path / "data", min_images=1)


@pytest.mark.parametrize("pack", [as_tar, as_zip, as_folder])
@pytest.mark.parametrize("above", ["", "my birds/", "a/b/"])
def test_own_images_with_splits(pack, above, tmp_path):
    extra = {f"{above}README": b"x", f"{above}train/.DS_Store": b"x", f"__MACOSX/{above}._im.png": b"x"}
    source = pack(tmp_path / "source", {**own_files(above=above), **extra})
    folder = prepare("mine", source, size=5, data=tmp_path / "data", min_images=3)
    opened = pool.verify("mine", 5, tmp_path / "data")
    assert splits_of(opened) == {
        split: [f"class {p}{c} é" for c in range(6)] for p, split in enumerate(("train", "validation", "test"))
    }
    assert opened.images.shape == (54, 5, 5, 3)
    assert json.loads((folder / "index.json").read_text())["about"]["other_files_ignored"] == 3


def test_own_images_without_splits_are_divided_by_a_seed(tmp_path):
    files = own_files(classes=11, split=False)
    files = {f"{i % 50:02}/{i}.png": content for i, content in enumerate([*files.values()] * 2)}
    source = as_folder(tmp_path / "source", files)
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        prepare(name, source, size=3, data=tmp_path, min_images=1, seed=seed)
    one, same, other = (splits_of(pool.read(name, 3, tmp_path)) for name in ("one", "same", "other"))
    assert [len(names) for names in one.values()] == [32, 8, 10]
    assert one == same != other
    assert sorted(name for names in other.values() for name in names) == sorted({path.split("/")[0] for path in files})
    index = json.loads((tmp_path / "one-3" / "index.json").read_text())
    assert index["about"]["splits"] == "drawn in the ratio 64/16/20 with seed 0"


def test_the_same_images_give_the_same_bytes(tmp_path):
    rng = np.random.default_rng(0)
    files = {path: image(tuple(rng.integers(0, 255, 3).tolist())) for path in own_files()}
    backwards = dict(reversed(files.items()))
    prepare("pool", as_tar(tmp_path / "a.tar", files), data=tmp_path / "a", size=9, min_images=1)
    prepare("pool", as_zip(tmp_path / "b.zip", backwards), data=tmp_path / "b", size=9, min_images=1)
    assert pool.read("pool", 9, tmp_path / "a").sha256 == pool.read("pool", 9, tmp_path / "b").sha256


def bad(change: dict[str, bytes | None]) -> dict[str, bytes]:
    files = {**own_files(), **change}
    return {path: content for path, content in files.items() if content is not None}


BROKEN = "train/class 00 é/im age 0.png"
FAILURES = {
    "not an image": (bad({BROKEN: b"no image"}), "im age 0.png is not a readable image"),
    "cut off": (bad({BROKEN: image(size=(64, 64), kind="JPEG")[:400]}), "im age 0.png is not a readable image"),
    "empty file": (bad({BROKEN: b""}), "im age 0.png is not a readable image"),
    "too few images": (bad({BROKEN: None}), "class 'class 00 é' has 2 images, needs 3"),
    "too few classes": (own_files(classes=4), "the validation split has 4 classes, needs 5"),
    "no validation": (
        {k: v for k, v in own_files().items() if not k.startswith("val")},
        "validation split has 0 classes",
    ),
    "class in two splits": ({**own_files(), "test/class 00 é/a.png": PLAIN}, "'class 00 é' lies in train and test"),
    "no images": ({"readme.txt": b"hello"}, "holds no images in class folders"),
    "no class folders": ({"a.png": PLAIN, "b.png": PLAIN}, "holds no images in class folders"),
    "leads out": ({"../train/a/b.png": PLAIN}, r"'\.\./train/a/b\.png', a path that leads out of it"),
    "absolute": ({"/etc/a/b.png": PLAIN}, "a path that leads out of it"),
}


@pytest.mark.parametrize("pack", [as_tar, as_zip])
@pytest.mark.parametrize("case", FAILURES)
def test_failures_are_named_and_leave_nothing(case, pack, tmp_path):
    files, message = FAILURES[case]
    with pytest.raises(InputError, match=message):
        prepare("mine", pack(tmp_path / "source", files), data=tmp_path / "data", min_images=3)
    assert left(tmp_path / "data") == []


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_in_a_tar_are_refused(kind, tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        info = tarfile.TarInfo("train/a/b.png")
        info.type, info.linkname = kind, "/etc/passwd"
        tar.addfile(info)
    with pytest.raises(InputError, match=r"'train/a/b\.png', which is a link or a device"):
        prepare("mine", tmp_path / "a.tar", data=tmp_path / "data")


def test_links_in_a_zip_are_refused(tmp_path):
    info = zipfile.ZipInfo("train/a/b.png")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(InputError, match="which is a link"):
        prepare("mine", tmp_path / "a.zip", data=tmp_path / "data")


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_a_truncated_archive_is_refused(mode, tmp_path):
    noise = np.random.default_rng(0).bytes(40_000)
    whole = as_tar(tmp_path / "whole", {**own_files(), "z": noise, "zz": noise}, mode).read_bytes()
    (tmp_path / "cut").write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(InputError, match=r"cut (cannot be read|is neither)"):
        prepare("mine", tmp_path / "cut", data=tmp_path / "data", min_images=1)
    assert left(tmp_path / "data") == []


def test_sources_that_are_none(tmp_path):
    (tmp_path / "text").write_text("hello")
    with pytest.raises(InputError, match="neither a folder nor a tar nor a zip"):
        prepare("mine", tmp_path / "text", data=tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        prepare("mine", tmp_path / "nowhere", data=tmp_path)
    for name, size, message in (("a/b", 84, "a pool's name"), ("..", 84, "a pool's name"), ("a", 0, "size must be")):
        with pytest.raises(InputError, match=message):
            prepare(name, tmp_path, size=size, data=tmp_path)


def test_ctrl_c_leaves_nothing(tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("metagrove.pools.prepare.decode", stop)
    with pytest.raises(KeyboardInterrupt):
        prepare("mine", as_tar(tmp_path / "a.tar", own_files()), data=tmp_path / "data", min_images=1)
    assert left(tmp_path / "data") == []


def test_a_pool_is_replaced_only_by_force_and_only_by_a_whole_one(tmp_path):
    good = as_tar(tmp_path / "a.tar", own_files(content=image(GREEN)))
    again = {"size": 4, "data": tmp_path / "data", "min_images": 1}
    prepare("mine", as_tar(tmp_path / "b.tar", own_files()), **again)
    with pytest.raises(InputError, match="exists already: --force"):
        prepare("mine", good, **again)
    with pytest.raises(InputError, match="not a readable image"):
        prepare("mine", as_tar(tmp_path / "c.tar", bad({BROKEN: b"x"})), force=True, **again)
    assert pool.verify("mine", 4, tmp_path / "data").images[0, 0, 0].tolist() == list(RED)
    prepare("mine", good, force=True, **again)
    assert pool.verify("mine", 4, tmp_path / "data").images[0, 0, 0].tolist() == list(GREEN)
    assert left(tmp_path / "data") == ["mine-4", "mine-4/images.npy", "mine-4/index.json"]


def test_a_full_disk_is_said_before_writing(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 100})
    monkeypatch.setattr("metagrove.pools.pool.shutil.disk_usage", lambda _: usage)
    with pytest.raises(RunError, match="0 MB free, the pool needs"):
        prepare("mine", as_tar(tmp_path / "a.tar", own_files()), data=tmp_path / "data", min_images=1)
    assert left(tmp_path / "data") == []


def test_every_kind_of_image_becomes_rgb():
    grey = (100, 100, 100)
    transparent = io.BytesIO()
    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(transparent, "PNG")
    deep = io.BytesIO()
    Image.fromarray(np.full((8, 8), 100 * 257, np.uint16)).save(deep, "PNG")
    cases = [
        (image(grey, mode="L"), grey),
        (image((255, 0, 0), mode="P"), (255, 0, 0)),
        (image(RED, kind="GIF", mode="P", transparency=0), None),
        (image(RED, mode="RGBA"), RED),
        (image(grey, mode="LA"), grey),
        (image((255, 255, 255), mode="1"), (255, 255, 255)),
        (image(RED, kind="BMP"), RED),
        (image(RED, kind="WEBP", lossless=True), RED),
        (image(RED, kind="JPEG", mode="CMYK", quality=95), RED),
        (transparent.getvalue(), (255, 255, 255)),
        (deep.getvalue(), grey),
    ]
    for content, colour in cases:
        rgb = decode(content, 5)
        assert rgb.shape == (5, 5, 3)
        assert rgb.dtype == np.uint8
        if colour is not None:
            np.testing.assert_allclose(rgb, np.broadcast_to(colour, rgb.shape), atol=4)


def test_exif_orientation_is_respected():
    image = Image.new("RGB", (20, 20), BLUE)
    image.paste(RED, (0, 0, 20, 10))
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = 3  # upside down
    image.save(file, "PNG", exif=exif)
    turned = decode(file.getvalue(), 20)
    assert turned[2, 2].tolist() == list(BLUE)
    assert turned[17, 2].tolist() == list(RED)


def test_a_box_outside_the_frame_is_named(tmp_path):
    with pytest.raises(ValueError, match="lies outside its frame of 8 × 8"):
        decode(PLAIN, 4, (9.0, 9.0, 20.0, 20.0))
    np.testing.assert_array_equal(decode(PLAIN, 4, (-3.0, -3.0, 90.0, 90.0))[0, 0], RED)


class Server(http.server.BaseHTTPRequestHandler):
    """Serves `body`; breaks off after `breaks_at` bytes once; knows ranges if `ranges`."""

    body = b""
    breaks_at: int | None = None
    ranges = True
    asked: list = []  # noqa: RUF012

    def do_GET(self):
        asked = self.headers.get("Range")
        type(self).asked = [*self.asked, asked]
        if self.path.startswith("/gone"):
            return self.send_error(404)
        start = int(asked[6:-1]) if asked and self.ranges else 0
        if start >= len(self.body):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(self.body)}")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(self.body) - 1}/{len(self.body)}")
        self.send_header("Content-Length", str(len(self.body) - start))
        self.send_header("Content-Encoding", "x-gzip")  # as some servers say of a .tar.gz
        self.end_headers()
        self.wfile.write(self.body[start : self.breaks_at])
        type(self).breaks_at = None
        return None

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def served(**settings):
    handler = type("Handler", (Server,), {"asked": [], **settings})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", handler
        finally:
            server.shutdown()
            thread.join()


def dataset(url: str, body: bytes | None = None) -> official.Official:
    checksum = None if body is None else f"md5:{hashlib.md5(body).hexdigest()}"
    return official.Official("x", 1, "https://example.org/birds", url, checksum)


BODY = np.random.default_rng(0).bytes(300_000)


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_download_goes_on(ranges, tmp_path):
    with served(body=BODY, breaks_at=200_000, ranges=ranges) as (url, handler):
        wanted = dataset(f"{url}/a.tgz", BODY)
        with pytest.raises(
            InputError, match=r"could not be downloaded.*200,000 bytes are stored, run the same command to resume"
        ):
            fetch("bird", wanted, tmp_path)
        assert left(tmp_path) == ["a.tgz.part"]
        path = fetch("bird", wanted, tmp_path)
        assert path.read_bytes() == BODY
        assert left(tmp_path) == ["a.tgz"]
        assert fetch("bird", wanted, tmp_path) == path  # nothing is asked again
        assert handler.asked == [None, "bytes=200000-"]


def test_a_part_that_is_whole_or_too_long(tmp_path):
    with served(body=BODY) as (url, _):
        for part in (BODY, BODY + b"more"):
            (tmp_path / "a.tgz.part").write_bytes(part)
            path = fetch("bird", dataset(f"{url}/a.tgz", BODY), tmp_path)
            assert path.read_bytes() == BODY
            path.unlink()


def test_a_wrong_checksum_throws_the_file_away(tmp_path):
    with (
        served(body=BODY) as (url, _),
        pytest.raises(
            InputError, match=r"its checksum is not md5:.*it was deleted; get the file from https://example.org"
        ),
    ):
        fetch("bird", dataset(f"{url}/a.tgz", b"other"), tmp_path)
    assert left(tmp_path) == []


def test_dead_links_say_where_to_get_the_file(tmp_path):
    by_hand = r"get the file from https://example.org/birds and pass it with `metagrove data prepare bird --from FILE`"
    with served() as (url, _), pytest.raises(InputError, match=f"the server answered 404 Not Found.*{by_hand}"):
        fetch("bird", dataset(f"{url}/gone.tgz", BODY), tmp_path)
    with pytest.raises(InputError, match=rf"could not be downloaded \(no connection\): {by_hand}"):
        fetch("bird", dataset(f"{url}/a.tgz", BODY), tmp_path)
    with pytest.raises(InputError, match="mini-imagenet has no official archive to fetch: get the file from"):
        fetch("mini-imagenet", OFFICIAL["mini-imagenet"], tmp_path)
    assert left(tmp_path) == []


def test_without_a_published_checksum_the_first_is_recorded(tmp_path, capsys):
    with served(body=BODY) as (url, handler):
        path = fetch("bird", dataset(f"{url}/a.tgz"), tmp_path)
        assert "no checksum of a.tgz is published; recorded sha256:" in capsys.readouterr().err
        path.unlink()
        handler.body = b"something else"
        with pytest.raises(InputError, match="its checksum is not sha256:"):
            fetch("bird", dataset(f"{url}/a.tgz"), tmp_path)


def test_command_line_downloads_and_prepares(tmp_path, monkeypatch, capsys):
    archive = as_tar(tmp_path / "dtd.tar.gz", dtd_files(), "w:gz").read_bytes()
    data = ["--data", str(tmp_path / "data")]
    with served(body=archive) as (url, _):
        entry = dataclasses.replace(dataset("https://nowhere.invalid/dtd.tar.gz", archive), images=120)
        monkeypatch.setitem(OFFICIAL, "texture", entry)
        mirror = ["--download", "--url", f"{url}/dtd.tar.gz", "--size", "8", "--min-images", "2"]
        assert main(["data", "prepare", "texture", *mirror, *data]) == 0
    out = capsys.readouterr().out
    assert "30/7/10 classes, 94 images, sha256" in out
    assert "47 classes below the paper's 120" in out
    assert (tmp_path / "data" / "archives" / "dtd.tar.gz").exists()


def test_command_line_list_and_verify(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    source, data = as_tar(tmp_path / "a.tar", own_files()), ["--data", str(tmp_path / "data")]
    assert main(["data", "list", *data]) == 0
    assert "No pool is prepared" in capsys.readouterr().out
    assert main(["data", "verify", *data]) == 2
    prepare_it = ["data", "prepare", "mine", "--from", str(source), "--min-images", "3", "--size"]
    assert main([*prepare_it, "7", *data]) == main([*prepare_it, "9", *data]) == 0
    assert main([*prepare_it, "9", *data]) == 2
    capsys.readouterr()
    assert main(["data", "list", *data]) == 0
    listed = capsys.readouterr().out
    checksum = pool.read("mine", 7, tmp_path / "data").sha256[:12]
    for words in (
        "CUB-200-2011",
        "64/16/20",
        OFFICIAL["bird"].page,
        "Research use",
        "6/6/6 classes, 54 images",
        checksum,
    ):
        assert words in listed
    assert main(["data", "verify", "mine", *data]) == 0
    assert capsys.readouterr().out.count("ok ") == 2
    flip(tmp_path / "data" / "mine-7" / "images.npy")
    assert main(["data", "verify", *data]) == 3
    out = capsys.readouterr().out
    assert "damaged  mine 7" in out
    assert "ok       mine 9" in out
    assert main(["data", "verify", "--size", "9", *data]) == 0


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def test_damaged_pools_are_found(tmp_path):
    prepare("mine", as_tar(tmp_path / "a.tar", own_files()), size=4, data=tmp_path, min_images=1)
    images = tmp_path / "mine-4" / "images.npy"
    whole = images.read_bytes()
    for content in (whole[:-1], b"", b"no array"):
        images.write_bytes(content)
        with pytest.raises(RunError, match=r"images\.npy (cannot be read|has shape).*prepare"):
            pool.verify("mine", 4, tmp_path)
    images.write_bytes(whole)
    index = tmp_path / "mine-4" / "index.json"
    index.write_text(index.read_text().replace('"count": 3', '"count": 2', 1))
    with pytest.raises(RunError, match="checksum does not match"):
        pool.verify("mine", 4, tmp_path)
    with pytest.raises(InputError, match="no pool 'mine' of 5 pixels"):
        pool.verify("mine", 5, tmp_path)


@pytest.mark.parametrize("args", [[], ["prepaer"], ["prepare", "x"], ["prepare", "x", "--from", "a", "--download"]])
def test_wrong_words(args, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["data", *args]) == 2
    assert "metagrove" in capsys.readouterr().err


def test_download_of_an_unknown_name(capsys, tmp_path):
    assert main(["data", "prepare", "cats", "--download", "--data", str(tmp_path)]) == 2
    assert "--download supports bird, texture, aircraft, fungi, mini-imagenet; got 'cats'" in capsys.readouterr().err
