"""Commands of this package side by side, each in a process of its own: on the cores of this machine or on a cluster."""
