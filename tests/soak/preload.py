"""Imports of the server from which the processes of soak tests are forked."""

import trainer.checkpoints.model
import trainer.train  # noqa: F401
