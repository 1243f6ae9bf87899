"""The commands package."""
