"""Drawing of few-shot image tasks from the images of one meta-split, and their augmentation."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt8

from metagrove.task import Task, unpadded

__all__ = ["Episodes", "draw", "random_episodes"]


class Episodes(eqx.Module):
    """The tasks of one meta-split; the images of class c are `starts[c]` to `starts[c] + counts[c]`."""

    images: UInt8[Array, "n h w 3"]
    starts: Int[Array, "d c"]
    counts: Int[Array, "d c"]
    """Number of images of each class; 0 pads datasets with fewer classes."""
    weights: Float[Array, " d"]
    numbers: Int[Array, " d"]
    """Index of each dataset among those of the source."""
    ways: int = eqx.field(static=True)
    shots: int = eqx.field(static=True)
    queries: int = eqx.field(static=True)
    most: int = eqx.field(static=True)
    """Largest number of images of a class."""
    augment: bool = eqx.field(static=True)
    rotate: float = eqx.field(static=True, default=0.0)
    mix: float = eqx.field(static=True, default=0.0)

    @property
    def num_classes(self) -> int:
        """Number of classes that `Task.classes` counts; 0 if they are mixed."""
        return 0 if self.mix else int((self.counts > 0).sum()) * (4 if self.rotate else 1)

    def sample(self, key: PRNGKeyArray) -> Task:
        """Draw one task, determined completely by `key`; labels follow the order in which classes are drawn."""
        dataset_key, class_key, image_key, change_key = jax.random.split(key, 4)
        dataset = jax.random.categorical(dataset_key, jnp.log(self.weights))
        classes = draw(class_key, self.counts[dataset] > 0, self.ways)
        x = self.images_of(image_key, dataset, classes)
        if self.mix:
            x = self.mixed(jax.random.fold_in(key, 1), dataset, x)
        x = augment(change_key, x) if self.augment else x
        classes += (self.counts > 0).sum(1).cumsum()[dataset] - (self.counts[dataset] > 0).sum()
        if self.rotate:
            turn = draw_turn(jax.random.fold_in(key, 2), self.rotate)
            x, classes = turned(x, turn), classes + turn * (self.counts > 0).sum()
        num_support, one_hot = self.ways * self.shots, jnp.eye(self.ways)
        support = unpadded(x[:num_support], jnp.repeat(one_hot, self.shots, axis=0))
        query = unpadded(x[num_support:], jnp.repeat(one_hot, self.queries, axis=0))
        return Task(support, query, self.numbers[dataset], None if self.mix else classes)

    def images_of(self, key: PRNGKeyArray, dataset: Array, classes: Int[Array, " k"]) -> Float[Array, "n h w 3"]:
        """Draw distinct images of some classes of a dataset, those of the support set first."""
        counts, starts = self.counts[dataset], self.starts[dataset]

        def images_of(key: PRNGKeyArray, which: Array) -> Array:
            return starts[which] + draw(key, jnp.arange(self.most) < counts[which], self.shots + self.queries)

        chosen = jax.vmap(images_of)(jax.random.split(key, self.ways), classes)
        in_order = jnp.concatenate([chosen[:, : self.shots].reshape(-1), chosen[:, self.shots :].reshape(-1)])
        return self.images[in_order].astype(jnp.float32) / 255

    def mixed(self, key: PRNGKeyArray, dataset: Array, x: Float[Array, "n h w 3"]) -> Float[Array, "n h w 3"]:
        """With probability `mix`, the mean of each image and one of another class, the same for all of a class."""
        whether_key, class_key, image_key = jax.random.split(key, 3)
        classes = draw(class_key, self.counts[dataset] > 0, self.ways)
        other = (x + self.images_of(image_key, dataset, classes)) / 2
        return jnp.where(jax.random.bernoulli(whether_key, self.mix), other, x)


def random_episodes(num_classes: int, images_per_class: int, size: int, **episode: int) -> Episodes:
    """Tasks of random images in place of a prepared pool's, for benchmarks and `metagrove selfcheck`.

    Args:
        num_classes: Number of classes.
        images_per_class: Number of images of each class.
        size: Width and height of the images in pixels.
        **episode: `ways`, `shots` and `queries` of the tasks.

    Returns:
        The tasks, the same in every call.
    """
    shape = num_classes * images_per_class, size, size, 3
    return Episodes(
        images=jnp.asarray(np.random.default_rng(0).integers(0, 256, shape, np.uint8)),
        starts=jnp.arange(num_classes)[None] * images_per_class,
        counts=jnp.full((1, num_classes), images_per_class),
        weights=jnp.ones(1),
        numbers=jnp.zeros(1, jnp.int32),
        most=images_per_class,
        augment=False,
        **episode,
    )


def draw(key: PRNGKeyArray, allowed: Array, count: int) -> Int[Array, " count"]:
    """Draw `count` distinct indices where `allowed` is true, uniformly at random."""
    scores = jnp.where(allowed, jax.random.uniform(key, allowed.shape), -1)
    return jax.lax.top_k(scores, count)[1]


def augment(key: PRNGKeyArray, x: Float[Array, "n h w 3"]) -> Float[Array, "n h w 3"]:
    """Mirror images at random and shift them by up to an eighth of their size, with edge padding."""
    mirror_key, shift_key = jax.random.split(key)
    reach = x.shape[1] // 8
    mirrored = jax.random.bernoulli(mirror_key, 0.5, (len(x), 1, 1, 1))
    x = jnp.where(mirrored, x[:, :, ::-1], x)
    padded = jnp.pad(x, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode="edge")
    shifts = jax.random.randint(shift_key, (len(x), 2), 0, 2 * reach + 1)
    return jax.vmap(lambda one, at: jax.lax.dynamic_slice(one, (at[0], at[1], 0), x.shape[1:]))(padded, shifts)


def draw_turn(key: PRNGKeyArray, probability: float) -> Int[Array, ""]:
    """Draw a number of quarter turns: 1, 2 or 3 with a probability, else 0."""
    whether_key, turn_key = jax.random.split(key)
    whether = jax.random.bernoulli(whether_key, probability)
    return jnp.where(whether, jax.random.randint(turn_key, (), 1, 4), 0)


def turned(x: Float[Array, "n h w 3"], turn: Int[Array, ""]) -> Float[Array, "n h w 3"]:
    """Rotate square images by quarter turns."""
    return jax.lax.switch(turn, [functools.partial(jnp.rot90, k=k, axes=(1, 2)) for k in range(4)], x)
