"""A person's own data, from files to a trained run with baselines."""
