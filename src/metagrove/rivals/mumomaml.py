"""MUMOMAML (Vuorio et al. 2018, 2019): a task embedding modulates the layers of the base net, which is then adapted.

τ = encoder(support): a two-layer bidirectional LSTM, or strided convolutions for images
τ_l = Linear_l(τ) for each hidden layer l
FiLM:     x(1 + γ) + β, τ_l = [γ, β]      sigmoid:  x σ(τ_l)      softmax:  x softmax(τ_l)
The inner steps adapt θ and leave τ unchanged.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.errors import check_at_least_one
from metagrove.inner import GradientLearner
from metagrove.learner import Info, Predictor
from metagrove.nets.encoder import StridedEncoder
from metagrove.nets.layers import require_layers
from metagrove.nets.linear import Linear
from metagrove.nets.modulation import Modulated, ModulationForm, code_sizes
from metagrove.nets.order import RowOrder, row_orders
from metagrove.nets.recurrent import BidirectionalLSTM
from metagrove.task import Examples, Spec

__all__ = ["MUMOMAML"]


class MUMOMAMLMeta(eqx.Module):
    """Θ: the base net, the task encoder, and the linear maps from τ to τ_l."""

    net: Predictor
    encoder: BidirectionalLSTM | StridedEncoder
    code_layers: tuple[Linear, ...]


@dataclasses.dataclass(frozen=True)
class MUMOMAML(GradientLearner):
    """Multimodal MAML: an encoding of the support set modulates the hidden layers of the base net.

    From Multimodal Model-Agnostic Meta-Learning via Task-Aware Modulation (Vuorio et al. 2019).
    """

    modulation: ModulationForm = "film"
    """How a layer is modulated: by scale and shift (FiLM), by sigmoid gates, or by softmax weights."""
    hidden_dim: int = 40
    """Size of each LSTM of the task encoder."""
    encoder_layers: int = 2
    """Number of bidirectional layers of the task encoder."""
    row_order: RowOrder = "random"
    """Order in which the encoder reads the rows in training."""
    test_permutations: int = 16
    """With random order, number of fixed permutations of the sorted rows over which τ is averaged at test time."""

    def validation_errors(self) -> list[str]:
        return super().validation_errors() + check_at_least_one(
            self, "hidden_dim", "encoder_layers", "test_permutations"
        )

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> MUMOMAMLMeta:
        net_key, encoder_key, code_key = jax.random.split(key, 3)
        net = require_layers(self.make_net(spec, key=net_key), "MUMOMAML")
        sizes = code_sizes(net, self.modulation)
        code_keys = [jax.random.fold_in(code_key, layer) for layer in range(len(sizes))]
        return MUMOMAMLMeta(
            net=net,
            encoder=self.make_encoder(spec, key=encoder_key),
            code_layers=tuple(
                Linear(2 * self.hidden_dim, size, key=k) for size, k in zip(sizes, code_keys, strict=True)
            ),
        )

    def make_encoder(self, spec: Spec, *, key: PRNGKeyArray) -> BidirectionalLSTM | StridedEncoder:
        """Initialise the task encoder: an LSTM for vectors, strided convolutions for images.

        Args:
            spec: Shapes of the inputs and targets.
            key: Random key.

        Returns:
            An encoder with an output of size 2·hidden_dim.
        """
        if len(spec.x_shape) == 1:
            return BidirectionalLSTM(spec.x_shape[0] + spec.y_dim, self.hidden_dim, self.encoder_layers, key=key)
        return StridedEncoder(spec.x_shape[-1], 2 * self.hidden_dim, key=key)

    def adapt(
        self, meta: MUMOMAMLMeta, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[Predictor, Info]:
        code = self.encode(meta.encoder, support, key)
        modulated = Modulated(meta.net, tuple(layer(code) for layer in meta.code_layers), self.modulation)
        adapted, path = self.fit(modulated, support, steps)
        return adapted, Info(path, task_embedding=code)

    def encode(
        self, encoder: BidirectionalLSTM | StridedEncoder, support: Examples, key: PRNGKeyArray | None
    ) -> Float[Array, " d"]:
        """Compute τ; without a key it does not depend on the order of the examples.

        Args:
            encoder: The task encoder.
            support: Support set of the task.
            key: Random key of the row order; None for a deterministic result.

        Returns:
            The task embedding τ.
        """
        if isinstance(encoder, StridedEncoder):
            return encoder(support)
        rows = jnp.concatenate([support.x, support.y], axis=1)
        orders = row_orders(support, self.test_permutations, key=key, order=self.row_order)
        if len(orders) == 1:
            return encoder(rows[orders[0]], support.mask[orders[0]])
        return jax.vmap(lambda order: encoder(rows[order], support.mask[order]))(orders).mean(0)
