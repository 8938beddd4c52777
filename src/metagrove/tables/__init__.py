"""Reading, checking and encoding people's tables."""
