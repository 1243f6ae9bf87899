"""The stages package."""
