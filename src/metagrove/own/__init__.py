"""Training on a user's own data: from files to a trained run with baselines."""
