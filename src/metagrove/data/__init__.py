"""Image pools: what `metagrove data` prepares once, and every image experiment reads."""
