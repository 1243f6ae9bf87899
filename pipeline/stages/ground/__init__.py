"""The ground stage: boxes for the noun chunks of each caption, by a grounding model."""
