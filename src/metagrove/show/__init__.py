"""Figures of what a run wrote; nothing here trains."""
