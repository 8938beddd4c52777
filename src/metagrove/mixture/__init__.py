"""Clusters of tasks found by evidence: a mixture of Gaussian priors over functions, its fit and its hierarchy."""
