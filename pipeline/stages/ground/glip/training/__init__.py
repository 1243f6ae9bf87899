"""Training of GLIP. The rest of the pipeline does not import it; `pipeline.stages.ground.glip.training.run` is its command."""
