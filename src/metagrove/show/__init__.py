"""Figures, tables and reports of trained runs; nothing here trains."""
