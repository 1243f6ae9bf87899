"""The score stage: filters boxes by size, grounding score and CLIPScore."""
