"""The fence of an output: workers commit only while the lease of their own job or command holds it (pipeline.lease).

The driver of a job may be killed or cut off while its workers go on. The next job or command then takes over the lease,
with another token, and what the old workers would write belongs to other settings, or to another order of the rows.
"""

import json
import socket

from common.errors import UserError
from pipeline.faults.fault import ShardError
from pipeline.write.store import Store
from schemas import job as schemas
from schemas.files import LEASE_FILE


def check_lease(store: Store, token: str | None) -> None:
    """Raise UserError if a lease with another token holds the output. Without a token nothing is checked.

    Raises ShardError for a missing or unreadable lease: this machine may see another folder at the path of the output.
    """
    if token is None:
        return
    host = socket.gethostname()
    try:
        content = store.read(LEASE_FILE)
    except (UserError, OSError) as error:
        raise ShardError(f"the lease of this job cannot be read on {host}: {error}") from error
    holder = token_of(content)
    if holder is None:
        raise ShardError(
            f"there is no lease {store.url(LEASE_FILE)} on {host}, and nothing is written: the job has ended, or its "
            "output is not mounted there"
        )
    if holder != token:
        raise UserError(
            f"the job or command of this process has lost the output {store.root} to {describe(content)}, and nothing is "
            "written; if it has not finished, run it again later"
        )


def token_of(content: bytes | None) -> str | None:
    """Return the token of a lease, which stays the same when it is renewed; None if the content is no lease."""
    try:
        return str(json.loads(content or b"")["token"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def describe(content: bytes | None) -> str:
    """Describe the holder of a lease for messages."""
    if content is None:
        return "a job that has ended"
    try:
        lease: schemas.Lease = json.loads(content)
        return f"a job on host {lease['host']} (process {lease['pid']}, started {lease['started']})"
    except (ValueError, LookupError, TypeError, RecursionError):
        return "an unknown job"
