"""Image pools: datasets of images that are downloaded, prepared and verified once, and then read from disk."""
