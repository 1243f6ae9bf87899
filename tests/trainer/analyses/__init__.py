"""The analyses package."""
