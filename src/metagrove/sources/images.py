"""Few-shot image classification (paper, section 6.2): each task draws its classes from one of several datasets.

A split of the source holds its images on the device, so that tasks are drawn inside the compiled training step. The
random key determines the task completely; a task has classes of its own meta-split only.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from metagrove.errors import InputError, check_at_least_one, quoted
from metagrove.pools import pool
from metagrove.sources.episodes import Episodes
from metagrove.sources.source import Source
from metagrove.task import Spec, Split, Task

__all__ = ["Images"]


@dataclasses.dataclass(frozen=True)
class Images(Source):
    """N-way K-shot classification of images from prepared pools (paper, section 6.2).

    Pools are prepared once with `metagrove data prepare`. Labels are one-hot; pixels are in [0, 1].

    Example:
        >>> import metagrove as mg
        >>> source = mg.Images(datasets=("bird", "fungi"), size=32, ways=5, shots=1)
        >>> source.spec.x_shape
        (32, 32, 3)
    """

    datasets: tuple[str, ...] = ("bird", "texture", "aircraft", "fungi")
    """Pools to draw tasks from; each task uses one of them."""
    weights: tuple[float, ...] = ()
    """Relative frequency of each dataset; empty for equal frequencies."""
    held_out: str = ""
    """Dataset to leave out of training and validation; test tasks are drawn from all of its classes."""
    size: int = 84
    """Height and width of the images in pixels."""
    ways: int = 5
    """Number of classes per task (N)."""
    shots: int = 1
    """Number of support images per class (K)."""
    queries: int = 15
    """Number of query images per class in training."""
    test_queries: int = 15
    """Number of query images per class in validation and test."""
    train_ways: int = 0
    """Number of classes per training task, if it differs from that at test; 0 for the same."""
    train_shots: int = 0
    """Number of support images per class in training, if it differs from that at test; 0 for the same."""
    augment: bool = False
    """Augment training images by random mirroring and shifts of up to an eighth of their size; not in the paper."""
    rotate: float = 0.0
    """Probability that all images of a training task are rotated alike, by 90, 180 or 270 degrees: new classes."""
    mix: float = 0.0
    """Probability that each class of a training task is a mixture of two: every image is the mean of one of each."""
    data: str = "data"
    """Folder of the prepared pools."""

    def validation_errors(self) -> list[str]:
        """List the problems of the settings, one line each; see `Source.validation_errors`.

        Returns:
            A message for each setting that cannot be used.
        """
        problems = check_at_least_one(self, "size", "ways", "shots", "queries", "test_queries")
        problems += [] if self.datasets else ["datasets must name at least one pool"]
        for name in ("train_ways", "train_shots"):
            problems += [] if (value := getattr(self, name)) >= 0 else [f"{name} must be 0 or more, got {value}"]
        for name in ("rotate", "mix"):
            problems += [] if 0 <= (value := getattr(self, name)) <= 1 else [f"{name} must be from 0 to 1, got {value}"]
        if self.held_out and (self.held_out not in self.datasets or len(self.datasets) < 2):
            problems += [f"held_out must be one of two or more datasets, got {quoted(self.held_out)}"]
        if self.weights and (len(self.weights) != len(self.datasets) or not min(self.weights) > 0):
            problems += [f"weights must be a positive number for each of {len(self.datasets)} datasets"]
        return problems

    @property
    def spec(self) -> Spec:
        """Shapes of inputs and targets: RGB images and one-hot labels."""
        return Spec(x_shape=(self.size, self.size, 3), y_dim=self.ways)

    @property
    def train_spec(self) -> Spec:
        """Shapes of inputs and targets in training, which may have other ways than at test."""
        return Spec(x_shape=self.spec.x_shape, y_dim=self.train_ways or self.ways)

    def with_test_ways(self) -> "Images":
        """Return the source whose training tasks have as many classes as its test tasks.

        Returns:
            The source with `train_ways` 0.
        """
        return dataclasses.replace(self, train_ways=0)

    def as_at_test(self) -> "Images":
        """Return the source without the settings that change training tasks alone.

        Returns:
            The source, which draws the same test tasks.
        """
        plain = {"train_ways": 0, "train_shots": 0, "augment": False, "rotate": 0.0, "mix": 0.0}
        return dataclasses.replace(self, queries=self.test_queries, **plain)

    @property
    def family_names(self) -> tuple[str, ...]:
        """Names of the datasets, in the order of `Task.family`."""
        return self.datasets

    @property
    def checksums(self) -> dict[str, str]:
        """SHA-256 checksums of the images of every pool."""
        return {name: pool.read(name, self.size, Path(self.data)).sha256 for name in self.datasets}

    @property
    def num_classes(self) -> int:
        """Number of training classes of all datasets; with `rotate`, a class rotated is another; 0 with `mix`."""
        return self.split("train").num_classes

    def sample(self, key: PRNGKeyArray) -> Task:
        """Draw one training task.

        Args:
            key: Random key; it determines the task completely.

        Returns:
            The task, with `ways * shots` support and `ways * queries` query images (`train_ways` and `train_shots`,
            if they are set).
        """
        return self.split("train").sample(key)

    def split(self, name: Split) -> "Episodes":
        """Load the tasks of a meta-split; the images are read once and stay on the device.

        Args:
            name: "train", "validation" or "test".

        Returns:
            A module with `sample(key)` that holds the images of the split.

        Raises:
            InputError: If a pool is missing or too small.
        """
        with jax.ensure_compile_time_eval():  # cached, so its arrays must be concrete even while tracing
            return open_split(self, name)

    def parts(self, split: Split) -> "tuple[Episodes, ...]":
        """Return the tasks of each dataset separately.

        Args:
            split: "train", "validation" or "test".

        Returns:
            A module with `sample(key)` for each dataset.
        """
        everything = self.split(split)
        each = jnp.eye(len(everything.numbers))
        return tuple(eqx.tree_at(lambda tasks: tasks.weights, everything, weights) for weights in each)


@functools.lru_cache(maxsize=4)
def open_split(source: Images, split: Split) -> Episodes:
    """Load a meta-split of every dataset onto the device."""
    train = split == "train"
    ways = source.train_ways or source.ways if train else source.ways
    shots = source.train_shots or source.shots if train else source.shots
    queries = source.queries if train else source.test_queries
    drawn = [name for name in source.datasets if (name == source.held_out) == (split == "test") or not source.held_out]
    images, starts, counts, total = [], [], [], 0
    for name in drawn:
        opened = pool.read(name, source.size, Path(source.data))
        classes = [one for one in opened.classes if one.split == split or name == source.held_out]
        refuse_small(name, split, classes, ways, shots + queries)
        images += [opened.images[one.start : one.start + one.count] for one in classes]
        starts.append(total + np.cumsum([0, *(one.count for one in classes[:-1])]))
        counts.append([one.count for one in classes])
        total += sum(counts[-1])
    places = [source.datasets.index(name) for name in drawn]
    return Episodes(
        images=jnp.asarray(np.concatenate(images)),
        starts=jnp.asarray(padded(starts)),
        counts=jnp.asarray(padded(counts)),
        weights=jnp.asarray([source.weights[i] if source.weights else 1.0 for i in places], jnp.float32),
        numbers=jnp.asarray(places),
        ways=ways,
        shots=shots,
        queries=queries,
        most=max(map(max, counts)),
        augment=source.augment and train,
        rotate=source.rotate if train else 0.0,
        mix=source.mix if train else 0.0,
    )


def padded(rows: list[Any]) -> np.ndarray:
    """Stack rows of different lengths, padded with zeros."""
    longest = max(map(len, rows))
    return np.stack([np.pad(row, (0, longest - len(row))) for row in rows])


def refuse_small(name: str, split: str, classes: list[pool.ImageClass], ways: int, needed: int) -> None:
    """Raise an InputError if a dataset has too few classes or images to draw a task from."""
    if len(classes) < ways:
        raise InputError(f"{name} has {len(classes)} classes in its {split} split, a task needs {ways}: lower --ways")
    few = [f"{one.name} ({one.count})" for one in classes if one.count < needed]
    if few:
        raise InputError(
            f"{name}: a task needs {needed} images of a class, too few in {', '.join(few[:5])}: "
            "lower --shots, --queries or --test-queries"
        )
