"""The five published image datasets of the paper: origin, directory layout and number of images per class.

The class splits of appendix B are stored by class name in splits.json; those of MiniImagenet are Ravi & Larochelle's.
The paper states how many images of each class it uses but not which ones: here the first ones by file name are used.
"""

import dataclasses
import functools
import importlib.resources
import json
import re

from metagrove.pools import layouts


@dataclasses.dataclass(frozen=True)
class Official:
    """A published dataset; `checksum` has the form that pooch expects, or is None where none is published."""

    about: str
    images: int
    """Images per class that the paper uses."""
    page: str
    """Home page of the dataset."""
    url: str | None = None
    checksum: str | None = None
    layout: layouts.Layout | None = None
    """Directory layout of the archive; None means plain class folders."""

    @property
    def file(self) -> str | None:
        """File name of the archive, or None if there is no archive."""
        return None if self.url is None else self.url.rpartition("/")[2]

    def at(self, url: str | None) -> "Official":
        """Return the same dataset with another download URL, if one is given."""
        return self if url is None else dataclasses.replace(self, url=url)


OFFICIAL = {
    "bird": Official(
        about="CUB-200-2011, cropped to the bounding box",
        images=60,
        page="https://www.vision.caltech.edu/datasets/cub_200_2011/",
        url="https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
        checksum="md5:97eceeb196236b17998738112f37df78",  # in Avalanche, datasets/cub200
        layout=layouts.cub,
    ),
    "texture": Official(
        about="Describable Textures",
        images=120,
        page="https://www.robots.ox.ac.uk/~vgg/data/dtd/",
        url="https://www.robots.ox.ac.uk/~vgg/data/dtd/download/dtd-r1.0.1.tar.gz",
        checksum="md5:fff73e5086ae6bdbea199a49dfb8a4c1",  # in torchvision, datasets/dtd.py
    ),
    "aircraft": Official(
        about="FGVC-Aircraft variants, cropped to the bounding box",
        images=100,
        page="https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/",
        url="https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/archives/fgvc-aircraft-2013b.tar.gz",
        checksum="md5:d4acdd33327262359767eeaa97a4f732",  # in torchvision for R; Python's torchvision has none
        layout=layouts.fgvc,
    ),
    "fungi": Official(
        about="FGVCx Fungi 2018",
        images=150,
        page="https://github.com/visipedia/fgvcx_fungi_comp",
        url="https://labs.gbif.org/fgvcx/2018/fungi_train_val.tgz",
        checksum="md5:df2b2980835668ed1d9a0e286e4bdadd",  # on its own page, section Data
    ),
    "mini-imagenet": Official(
        about="MiniImagenet, 100 classes of ImageNet; it has no official archive",
        images=600,
        page="https://github.com/twitter-research/meta-learning-lstm (lists; the images are from image-net.org)",
        layout=layouts.ravi,
    ),
}


@functools.cache
def splits() -> dict[str, dict[str, list[str]]]:
    """Load the class names by dataset and meta-split."""
    return json.loads(importlib.resources.files("metagrove.pools").joinpath("splits.json").read_text(encoding="utf-8"))


def normal(name: str) -> str:
    """Normalise a class name for comparison: lower case, letters and digits only."""
    return "".join(character for character in name.lower() if character.isalnum())


def without_number(name: str) -> str:
    """Strip the number that CUB (001.) and Fungi (10000_) put in front of a class name."""
    return re.sub(r"^\d+[._]", "", name)
