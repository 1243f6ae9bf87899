"""Scenes for measuring alone: the demo's drawings, but other layouts, backgrounds, looks and captions.

Nothing here is shared with the generators of training scenes (`demo/world/`) except drawings, names and categories.
"""
