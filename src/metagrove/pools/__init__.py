"""Image pools: download, prepare, verify."""
