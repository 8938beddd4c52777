"""The paper's analysis (section 5, appendix A) in numbers: the terms of its bounds on trained runs, on functions.

The bounds are stated for stochastic gradient descent, one example a step and learning rates c/u; the runs take constant
steps on all support points at once. What is measured are the terms of the bounds, not bounds of these runs.
"""
