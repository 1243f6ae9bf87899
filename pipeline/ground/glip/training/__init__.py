"""Training of GLIP. The rest of the pipeline does not import it; `pipeline.ground.glip.train` is its command."""
