"""The one exception whose message is meant for the user."""


class UserError(Exception):
    """Something the user can mend: the message names the file, key or row, and what to do. Shown without a traceback; exit code 2."""
