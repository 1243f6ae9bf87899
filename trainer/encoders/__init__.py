"""Image and text towers, which turn each image or text into one feature vector.

`build` creates the tower that a configuration names. `image` and `text` hold the towers of the papers, and
`open_clip_towers` those of open_clip. `transformers_text` holds the text towers of transformers and their
networks. `config` holds the settings, and `sizes` those that follow from a tower. The projections that follow the towers
belong to the models (`trainer.models`).
"""
