"""Formatting of numbers in tables, where one column has mean squared errors from 4 down to .00001."""

__all__ = ["decimals", "error", "with_ci"]


def decimals(value: float) -> int:
    """Number of decimals of a formatted error: three, four below .1, six below .001."""
    return 3 if abs(value) >= 0.1 else 4 if abs(value) >= 1e-3 else 6


def error(value: float) -> str:
    """Format an error, without an exponent."""
    return f"{value:.{decimals(value)}f}"


def with_ci(value: float, ci95: float, *, digits: int | None = None) -> str:
    """Format a value and half the width of its interval, with the same number of decimals."""
    digits = decimals(value) if digits is None else digits
    return f"{value:.{digits}f} ± {ci95:.{digits}f}"
