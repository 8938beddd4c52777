"""Baselines that predict for a new task from its support rows: fitted in seconds, served like any other learner."""
