"""The same MAML and Meta-SGD in PyTorch, as people write them: a Python loop over tasks, and torch.func with vmap.

Second order, the network of the toy experiment, tasks drawn as `metagrove.Functions` draws them (one batch of
numbers is reused, so that no peer pays for drawing them).

And MAML on images: the network of `metagrove.nets.conv4`, a loop over tasks that are drawn from a pool in memory.
"""

import itertools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.func import functional_call, grad, vmap

SIZES = (1, 40, 40, 1)
BLOCKS = 4
EPSILON = 1e-3
Params = list[Tensor]
ImageTask = tuple[Tensor, Tensor, Tensor, Tensor]
"""Support images and labels, query images and labels."""


def network() -> torch.nn.Module:
    layers: list[torch.nn.Module] = []
    for i, (n_in, n_out) in enumerate(itertools.pairwise(SIZES)):
        layers += [torch.nn.Linear(n_in, n_out)] + ([torch.nn.ReLU()] if i < len(SIZES) - 2 else [])
    return torch.nn.Sequential(*layers)


def mse(prediction: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((prediction - y) ** 2).mean()


def loop_step(net, optimizer, batch, rates, inner_steps: int):
    """A task at a time; `rates` are step sizes by parameter."""
    optimizer.zero_grad()
    total = torch.zeros(())
    names = [name for name, _ in net.named_parameters()]
    for support_x, support_y, query_x, query_y in zip(*batch, strict=True):
        params = dict(net.named_parameters())
        for _ in range(inner_steps):
            loss = mse(functional_call(net, params, (support_x,)), support_y)
            grads = torch.autograd.grad(loss, list(params.values()), create_graph=True)
            params = {name: params[name] - rates[name] * g for name, g in zip(names, grads, strict=True)}
        total = total + mse(functional_call(net, params, (query_x,)), query_y)
    (total / len(batch[0])).backward()
    optimizer.step()


def vmap_step(net, optimizer, batch, rates, inner_steps: int):
    """All tasks at once."""

    def task_loss(params, support_x, support_y, query_x, query_y):
        def support_loss(params):
            return mse(functional_call(net, params, (support_x,)), support_y)

        for _ in range(inner_steps):
            grads = grad(support_loss)(params)
            params = {name: params[name] - rates[name] * grads[name] for name in params}
        return mse(functional_call(net, params, (query_x,)), query_y)

    optimizer.zero_grad()
    params = dict(net.named_parameters())
    vmap(task_loss, in_dims=(None, 0, 0, 0, 0))(params, *batch).mean().backward()
    optimizer.step()


PEERS = {
    # name: (how, are step sizes learned)
    "PyTorch, loop over tasks": (loop_step, False),
    "PyTorch, torch.func vmap": (vmap_step, False),
    "PyTorch, Meta-SGD, loop over tasks": (loop_step, True),
}


def make(which: str, batch, *, outer_lr: float, inner_lr: float, inner_steps: int):
    """A function that makes one meta-step."""
    step, learned = PEERS[which]
    net = network()
    rates = {name: torch.full_like(p, inner_lr) if learned else inner_lr for name, p in net.named_parameters()}
    own = [rate.requires_grad_() for rate in rates.values() if isinstance(rate, torch.Tensor)]
    optimizer = torch.optim.Adam([*net.parameters(), *own], lr=outer_lr)
    tensors = [torch.from_numpy(part) for part in batch]
    return lambda: step(net, optimizer, tensors, rates, inner_steps)


def conv4_shapes(size: int, filters: int, ways: int) -> list[tuple[int, ...]]:
    """Of each block's kernel and bias, then of the head's."""
    channels = [3] + [filters] * (BLOCKS - 1)
    blocks = [shape for n in channels for shape in ((filters, n, 3, 3), (filters,))]
    return [*blocks, (ways, filters * (size >> BLOCKS) ** 2), (ways,)]


def conv4_params(size: int, filters: int, ways: int) -> Params:
    """Xavier's weights, zero biases."""
    params = [torch.zeros(shape) for shape in conv4_shapes(size, filters, ways)]
    for p in params:
        if p.ndim > 1:
            torch.nn.init.xavier_uniform_(p)
    return [p.requires_grad_() for p in params]


def conv4(params: Params, x: Tensor) -> Tensor:
    """Logits of a set of images, normalised by the set's own statistics."""
    *blocks, weight, bias = params
    for kernel, shift in zip(blocks[::2], blocks[1::2], strict=True):
        x = F.conv2d(x, kernel, padding=1)
        x = F.batch_norm(x, None, None, torch.ones_like(shift), shift, training=True, eps=EPSILON)
        x = F.max_pool2d(F.relu(x), 2)
    return F.linear(x.flatten(1), weight, bias)


def query_loss(params: Params, task: ImageTask, *, inner_lr: float, inner_steps: int) -> Tensor:
    """After the inner steps; its gradient is of second order."""
    support_x, support_y, query_x, query_y = task
    for _ in range(inner_steps):
        loss = F.cross_entropy(conv4(params, support_x), support_y)
        grads = torch.autograd.grad(loss, params, create_graph=True)
        params = [p - inner_lr * g for p, g in zip(params, grads, strict=True)]
    return F.cross_entropy(conv4(params, query_x), query_y)


def draw_task(images: Tensor, *, ways: int, shots: int, queries: int) -> ImageTask:
    """From a pool of (classes, images of each, 3, height, width), in bytes."""
    classes = torch.randperm(len(images))[:ways]
    chosen = [images[c, torch.randperm(images.shape[1])[: shots + queries]] for c in classes]
    x, labels = torch.stack(chosen).float() / 255, torch.arange(ways)
    return (
        x[:, :shots].flatten(0, 1),
        labels.repeat_interleave(shots),
        x[:, shots:].flatten(0, 1),
        labels.repeat_interleave(queries),
    )


def make_images(
    images: Tensor, *, tasks: int, filters: int, outer_lr: float, episode: dict[str, int], inner: dict[str, float]
) -> Callable[[], float]:
    """A function that makes one meta-step of MAML and tells the loss; a task's graph is gone before the next begins."""
    params = conv4_params(images.shape[-1], filters, episode["ways"])
    optimizer = torch.optim.Adam(params, lr=outer_lr)

    def step() -> float:
        optimizer.zero_grad()
        total = 0.0
        for _ in range(tasks):
            loss = query_loss(params, draw_task(images, **episode), **inner) / tasks
            loss.backward()
            total += loss.item()
        optimizer.step()
        assert math.isfinite(total), "the loss is not finite"
        return total

    return step
