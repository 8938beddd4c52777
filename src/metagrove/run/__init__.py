"""Train, evaluate, compare and keep runs, for any learner and any source."""
