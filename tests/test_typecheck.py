"""The type checker of the tests finds what it should, however often a function is defined."""

import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float, TypeCheckError, jaxtyped
from typecheck import CHECKED, beartype_once

from metagrove.losses import mse


def test_the_package_is_checked():
    good = jnp.zeros((4, 1))
    assert mse(good, good, jnp.ones(4, bool)) == 0
    with pytest.raises(TypeCheckError, match=r"parameters of metagrove\.losses\.mse"):
        mse(good, good, jnp.ones(5, bool))


def defined(result=None):
    """A function within another one."""

    @jaxtyped(typechecker=beartype_once)
    def inner(x: Float[Array, "n 2"], y: Float[Array, " n"], times: int = 1) -> Float[Array, " n"]:
        return times * (x.sum(1) + y) if result is None else result

    return inner


def test_functions_within_functions_are_checked_and_prepared_once():
    x, y = jnp.ones((3, 2)), jnp.ones(3)
    assert defined()(x, y).tolist() == [3.0] * 3
    assert defined()(x, y, times=2).tolist() == [6.0] * 3
    with pytest.raises(TypeCheckError, match="parameters"):
        defined()(x, jnp.ones(4))
    with pytest.raises(TypeCheckError, match="parameters"):
        defined()(x, y, times=0.5)
    with pytest.raises(TypeCheckError, match="return value"):
        defined(jnp.ones(4))(x, y)
    assert defined()(x, y).tolist() == [3.0] * 3
    assert len([key for key in CHECKED if key[1].endswith("inner")]) == 2  # of the arguments, and of the result too
