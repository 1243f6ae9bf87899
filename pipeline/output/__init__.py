"""The output package."""
