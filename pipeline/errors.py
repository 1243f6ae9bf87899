"""The one exception whose message is meant for the user, under the name the pipeline knows."""

from settings.errors import UserError

__all__ = ["UserError"]
