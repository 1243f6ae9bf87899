"""The score stage, which filters boxes by size, grounding score and CLIPScore."""
