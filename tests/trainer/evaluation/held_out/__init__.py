"""The held_out package."""
