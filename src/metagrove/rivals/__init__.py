"""Every other method, a file each; none imports another, or hsml."""
