"""Read, check, split and encode a user's own tables."""
