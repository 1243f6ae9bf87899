"""The inference package."""
