"""Evaluation of runs: summaries, paired comparisons, transfer metrics, and baselines without meta-learning."""
