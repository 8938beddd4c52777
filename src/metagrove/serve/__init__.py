"""A trained run: adapt it to a task, predict, export; scikit-learn estimators."""
