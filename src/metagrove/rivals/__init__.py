"""The methods that HSML is compared with, one file each; none imports another or `hsml`."""
