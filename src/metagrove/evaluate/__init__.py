"""Evaluation of runs: summaries, paired comparisons, transfer, and baselines without meta-learning."""
