"""The paper's analysis (section 5, appendix A) in numbers: the terms of its bounds on trained runs, on functions.

The bounds are stated for stochastic gradient descent, one example per step and learning rates c/u; the runs take
constant steps on all support points at once. The terms of the bounds are measured; they do not bound these runs.
"""
