"""The paper's experiments, their results, and the tables of the documentation."""
