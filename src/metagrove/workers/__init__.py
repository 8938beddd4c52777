"""Parallel commands of this package, each in its own process: on the cores of this machine or on a cluster."""
