"""What the pipeline and the trainer both need: configuration, the user's error, decoding of images, the disk. Imports nothing of ours."""
