"""Adapt a run to all tasks of a table, of any size: in parts, in parallel, restartable, in flat memory."""
