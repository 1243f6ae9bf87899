"""The run package."""
