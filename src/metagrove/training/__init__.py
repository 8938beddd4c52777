"""The training loop, checkpoints, validation, growth and run folders."""
