"""What a run is: registries, presets, JSON, and migrations of old formats."""
