"""The caption stage: cleaned captions beside the originals."""
