"""A base net with further meta-parameters of its adaptation: options of any gradient-based learner.

- a last layer that is set from the class prototypes of each task's support set, with a learned scale s
  (`nets.prototypes`), in place of a learned one;
- attention among these prototypes;
- a learned factor of the inner learning rate for each layer (Antoniou et al. 2019).

They are meta-parameters: the outer loop trains them, a gate may modulate them, and inner steps leave them unchanged.
"""

from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from metagrove.errors import InputError
from metagrove.nets.layers import AfterLayer, adapted_mask, require_layers, without_head
from metagrove.nets.predictors import PlainLayers, plain_layers
from metagrove.nets.prototypes import SetAttention, class_prototypes, prototype_layer
from metagrove.task import Examples, Spec

OWNED = ("film", "rates", "scale", "attention")
"""The groups of `small_parameters`."""

FIRST_SHARPNESS = 6.0
"""First scale s of a prototype head times the number of features: the scale of mean squared distances in the logits."""


class FewShotNet(eqx.Module):
    """A layered net and its options. Without a prototype head it is called as the net is."""

    net: Any
    """The net; with a prototype head its last layer is empty until `start_head`."""
    log_scale: Float[Array, "..."] | None = None
    """log s of a prototype head."""
    attention: SetAttention | None = None
    log_rates: Float[Array, "..."] | None = None
    """Logarithm of the factor of each layer's inner learning rate."""
    num_outputs: int = eqx.field(static=True, default=0)

    def __call__(
        self,
        x: Float[Array, "n ..."],
        mask: Bool[Array, " n"] | None = None,
        *,
        after_layer: AfterLayer | None = None,
    ) -> Float[Array, "n y"]:
        return self.net(x, mask, after_layer=after_layer)

    def features(
        self, x: Float[Array, "n ..."], mask: Bool[Array, " n"] | None = None, after_layer: AfterLayer | None = None
    ) -> Float[Array, "n f"]:
        """The input of the last layer."""
        return self.net.features(x, mask, after_layer)

    def start_head(self, support: Examples, after_layer: AfterLayer | None = None) -> "FewShotNet":
        """The net with its last layer set from the support set; gradients flow through it to body and scale."""
        if self.log_scale is None:
            return self
        features = self.features(support.x, support.mask, after_layer)
        layer = prototype_layer(*class_prototypes(features, support, self.attention), jnp.exp(self.log_scale))
        return eqx.tree_at(lambda net: net.head, self, layer, is_leaf=lambda part: part is None)

    def rates(self) -> "FewShotNet | None":
        """The factor of the inner learning rate in place of each parameter; None without such factors."""
        if self.log_rates is None:
            return None
        return eqx.tree_at(lambda net: net.net, self, self.net.by_layer(tuple(jnp.exp(self.log_rates))))

    def as_layers(self, after_layer: AfterLayer | None = None) -> PlainLayers:
        """The net's own layers."""
        return plain_layers(self.net, after_layer)

    @property
    def adapted_mask(self) -> "FewShotNet":
        """Inner steps adapt the net, its last layer included, and leave the options unchanged."""
        nothing = jax.tree.map(lambda _: False, self)
        return eqx.tree_at(lambda mask: mask.net, nothing, adapted_mask(self.net))

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """Units of each layer."""
        return self.net.layer_sizes if self.log_scale is None else (*self.net.layer_sizes, self.num_outputs)

    @property
    def head(self) -> tuple[Any, Any]:
        """The last layer's parameters."""
        return self.net.head

    def by_layer(self, values: tuple[Any, ...]) -> "FewShotNet":
        """The structure with values[l] in place of each parameter of layer l."""
        return eqx.tree_at(lambda net: net.net, self, self.net.by_layer(values))


@runtime_checkable
class StartsHead(Protocol):
    """A net, or what wraps one, whose last layer may depend on the support set."""

    def start_head(self, support: Examples, after_layer: AfterLayer | None = None) -> Any:
        """The net with which inner steps on this support set begin."""
        ...

    def rates(self) -> Any:
        """Factors of the inner learning rate in the net's structure; None if all are 1."""
        ...


def start_head(net: Any, support: Examples, after_layer: AfterLayer | None = None) -> Any:
    """The net with which inner steps on a support set begin; a net without such an option is unchanged."""
    return net.start_head(support, after_layer) if isinstance(net, StartsHead) else net


def learning_rates(net: Any) -> Any:
    """Factors of the inner learning rate in the net's structure; None for a net without them."""
    return net.rates() if isinstance(net, StartsHead) else None


def make_few_shot(
    net: Any, spec: Spec, *, prototypes: bool, attention: bool, layer_rates: bool, key: PRNGKeyArray
) -> FewShotNet:
    """Wrap a layered net.

    Args:
        net: The net.
        spec: Shapes of inputs and targets.
        prototypes: Set the last layer from class prototypes, with a scale that starts at `FIRST_SHARPNESS`.
        attention: Let the prototypes attend to each other.
        layer_rates: Learn a factor of the inner learning rate for each layer.
        key: Random key of the attention.

    Returns:
        The wrapped net.
    """
    layers = len(require_layers(net, "the option").layer_sizes)
    size = num_features(net, spec)
    return FewShotNet(
        net=without_head(net, "A prototype head") if prototypes else net,
        log_scale=jnp.log(jnp.asarray(FIRST_SHARPNESS / size)) if prototypes else None,
        attention=SetAttention(size, key=key) if attention else None,
        log_rates=jnp.zeros(layers) if layer_rates else None,
        num_outputs=spec.y_dim,
    )


def num_features(net: Any, spec: Spec) -> int:
    """Size of the input of the last layer."""
    return jax.eval_shape(net.features, jnp.zeros((1, *spec.x_shape))).shape[1]


def small_parameters(net: Any, groups: tuple[str, ...]) -> tuple[Any, ...]:
    """The few parameters of a net that a node of a hierarchy may own, as a tuple of groups.

    Args:
        net: A layered net, or a `FewShotNet`.
        groups: Names of groups: film, scale and shift of each channel or hidden unit; rates, the logarithm of each
            layer's learning rate; scale, that of a prototype head; attention, the biases of the attention.

    Returns:
        The arrays of each group; None where the net has none.

    Raises:
        InputError: If there are none at all.
    """
    inner = net.net if isinstance(net, FewShotNet) else net
    attention = getattr(net, "attention", None)
    found = {
        "film": getattr(inner, "film", None),
        "rates": getattr(net, "log_rates", None),
        "scale": getattr(net, "log_scale", None),
        "attention": None if attention is None else attention.biases,
    }
    chosen = tuple(found[name] for name in groups)
    if not jax.tree.leaves(chosen):
        raise InputError(f"{type(inner).__name__} has none of the parameters that a node may own: {', '.join(groups)}")
    return chosen
