"""The same MAML and Meta-SGD in PyTorch, as people write them: a Python loop over tasks, and torch.func with vmap.

Second order, the network of the toy experiment, tasks drawn as `metagrove.Functions` draws them (one batch of
numbers is reused, so that no peer pays for drawing them).
"""

import itertools

import torch
from torch.func import functional_call, grad, vmap

SIZES = (1, 40, 40, 1)


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
