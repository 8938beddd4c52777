"""Recurrent autoencoder aggregator (paper, eqs. 4-5) and bidirectional LSTM.

An encoder RNN reads the rows; a decoder RNN starts from its last state and reconstructs the rows in reverse order.
"""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from metagrove.losses import masked_mean
from metagrove.nets.linear import Linear, xavier

State = tuple[Array, ...]
"""Recurrent state with the output first: (h,) for a GRU, (h, c) for an LSTM."""


Summary = Literal["mean", "last"]
"""The task embedding: the mean of the encoder's outputs, or the last one."""


class RecurrentAggregator(eqx.Module):
    """g = mean over rows of the outputs of the encoder, or the last output; also the reconstruction of the rows."""

    encoder: eqx.nn.GRUCell | eqx.nn.LSTMCell
    decoder: eqx.nn.GRUCell | eqx.nn.LSTMCell
    head: Linear
    summary: Summary = eqx.field(static=True)

    def __init__(
        self,
        in_dim: int,
        task_dim: int,
        cell: Literal["gru", "lstm"],
        summary: Summary = "mean",
        *,
        key: PRNGKeyArray,
    ):
        self.summary = summary
        encoder_key, decoder_key, head_key = jax.random.split(key, 3)
        make = {"gru": gru_cell, "lstm": lstm_cell}[cell]
        self.encoder = make(in_dim, task_dim, key=encoder_key)
        self.decoder = make(in_dim, task_dim, key=decoder_key)
        head = Linear(task_dim, in_dim, key=head_key)
        wide = jax.random.normal(head_key, (task_dim, in_dim))  # std 1, as in the authors' code
        self.head = eqx.tree_at(lambda h: h.weight, head, wide)

    def __call__(
        self, rows: Float[Array, "n e"], mask: Bool[Array, " n"]
    ) -> tuple[Float[Array, " d"], Float[Array, "n e"]]:
        """Compute g and the reconstruction; unmasked rows must come first."""
        outputs, last = self.encode(rows, mask)
        task_embedding = masked_mean(outputs, mask) if self.summary == "mean" else last[0]
        return task_embedding, self.decode(last, mask)

    def encode(self, rows: Float[Array, "n e"], mask: Bool[Array, " n"]) -> tuple[Float[Array, "n d"], State]:
        """g_j = RNN_enc(F_j, g_{j-1}); a masked row leaves the state unchanged."""
        return read(self.encoder, rows, mask)

    def decode(self, state: State, mask: Bool[Array, " n"]) -> Float[Array, "n e"]:
        """d_j = RNN_dec(d_{j+1}), from the last unmasked row to the first; returned in the order of the rows."""

        def step(carry: tuple[State, Array], _: None) -> tuple[tuple[State, Array], Array]:
            state, previous = carry
            state = advance(self.decoder, previous, state)
            reconstruction = self.head(state[0])
            return (state, reconstruction), reconstruction

        start = (state, jnp.zeros(self.decoder.input_size))
        _, backwards = jax.lax.scan(step, start, length=mask.shape[0], unroll=UNROLL)
        num_real = mask.sum()
        return backwards[(num_real - 1 - jnp.arange(mask.shape[0])) % mask.shape[0]]


class BidirectionalLSTM(eqx.Module):
    """Stacked bidirectional LSTM."""

    forwards: tuple[eqx.nn.LSTMCell, ...]
    backwards: tuple[eqx.nn.LSTMCell, ...]

    def __init__(self, in_dim: int, hidden_dim: int, num_layers: int, *, key: PRNGKeyArray):
        keys = jax.random.split(key, (num_layers, 2))
        in_dims = [in_dim] + [2 * hidden_dim] * (num_layers - 1)
        self.forwards = tuple(lstm_cell(n, hidden_dim, key=k[0]) for n, k in zip(in_dims, keys, strict=True))
        self.backwards = tuple(lstm_cell(n, hidden_dim, key=k[1]) for n, k in zip(in_dims, keys, strict=True))

    def __call__(self, rows: Float[Array, "n e"], mask: Bool[Array, " n"]) -> Float[Array, " d"]:
        """Return the last forward and first backward state of the top layer; unmasked rows must come first."""
        states = []
        for forward, backward in zip(self.forwards, self.backwards, strict=True):
            (outputs, last), (back_outputs, first) = read(forward, rows, mask), read(backward, rows, mask, reverse=True)
            rows, states = jnp.concatenate([outputs, back_outputs], axis=1), [last[0], first[0]]
        return jnp.concatenate(states)


UNROLL = 5
"""Rows per step of the compiled loop, so that a handful of rows becomes straight-line code."""


def read(
    cell: eqx.nn.GRUCell | eqx.nn.LSTMCell, rows: Float[Array, "n e"], mask: Bool[Array, " n"], *, reverse: bool = False
) -> tuple[Float[Array, "n d"], State]:
    """Return the outputs of a cell at every row and its last state; a masked row leaves the state unchanged."""

    def step(state: State, row: tuple[Array, Array]) -> tuple[State, Array]:
        inputs, real = row
        new = advance(cell, inputs, state)
        state = jax.tree.map(lambda n, o: jnp.where(real, n, o), new, state)
        return state, state[0]

    last, outputs = jax.lax.scan(step, zero_state(cell), (rows, mask), reverse=reverse, unroll=UNROLL)
    return outputs, last


def gru_cell(in_dim: int, hidden_dim: int, *, key: PRNGKeyArray) -> eqx.nn.GRUCell:
    """Create a GRU cell with Xavier weights and biases of 1 for the reset and update gates."""
    cell = eqx.nn.GRUCell(in_dim, hidden_dim, key=key)
    bias = jnp.concatenate([jnp.ones(2 * hidden_dim), jnp.zeros(hidden_dim)])
    cell = xavier_cell(cell, in_dim, hidden_dim, key=key)
    return eqx.tree_at(lambda c: (c.bias, c.bias_n), cell, (bias, jnp.zeros(hidden_dim)))


def lstm_cell(in_dim: int, hidden_dim: int, *, key: PRNGKeyArray) -> eqx.nn.LSTMCell:
    """Create an LSTM cell with Xavier weights and a bias of 1 for the forget gate."""
    cell = eqx.nn.LSTMCell(in_dim, hidden_dim, key=key)
    bias = jnp.zeros(4 * hidden_dim).at[hidden_dim : 2 * hidden_dim].set(1.0)
    return eqx.tree_at(lambda c: c.bias, xavier_cell(cell, in_dim, hidden_dim, key=key), bias)


def xavier_cell(cell, in_dim: int, hidden_dim: int, *, key: PRNGKeyArray):
    """Initialise each gate's weights, which act on [input; state], as one Xavier layer."""
    in_key, hidden_key = jax.random.split(key)
    weights = (
        xavier(in_key, cell.weight_ih.shape, in_dim + 2 * hidden_dim),
        xavier(hidden_key, cell.weight_hh.shape, in_dim + 2 * hidden_dim),
    )
    return eqx.tree_at(lambda c: (c.weight_ih, c.weight_hh), cell, weights)


def zero_state(cell: eqx.nn.GRUCell | eqx.nn.LSTMCell) -> State:
    """Return the initial state of a cell."""
    zeros = jnp.zeros(cell.hidden_size)
    return (zeros, zeros) if isinstance(cell, eqx.nn.LSTMCell) else (zeros,)


def advance(cell: eqx.nn.GRUCell | eqx.nn.LSTMCell, inputs: Array, state: State) -> State:
    """Advance a GRU or LSTM cell by one step."""
    if isinstance(cell, eqx.nn.LSTMCell):
        return cell(inputs, state)
    return (cell(inputs, state[0]),)
