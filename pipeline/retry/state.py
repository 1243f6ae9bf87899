"""The state of the attempts at the rows of an output, `_retry.json`."""

import json
from collections.abc import Iterable

from common.errors import UserError
from common.text import one_line
from pipeline.retry.options import RetryOptions
from pipeline.write.store import Store
from schemas.attempts import attempt_of
from schemas.files import RETRY_FILE
from schemas.job import RetryState


def read_state(store: Store) -> RetryState | None:
    """Return the last attempt, None before the first. Raises UserError for a damaged file."""
    content = store.read(RETRY_FILE)
    if content is None:
        return None
    try:
        value = json.loads(content)
        reasons = [str(reason) for reason in value["reasons"]]
        return {"attempt": int(value["attempt"]), "reasons": reasons, "finished": bool(value["finished"])}
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise UserError(
            f"{store.url(RETRY_FILE)} is damaged ({one_line(error)}); remove it, and the next run is a new attempt"
        ) from error


def write_state(store: Store, state: RetryState) -> None:
    """Write the state of an attempt. Raises UserError if the output cannot be written."""
    store.write(RETRY_FILE, json.dumps(state, sort_keys=True))


def next_attempt(state: RetryState | None, options: RetryOptions, indices: Iterable[int]) -> RetryState:
    """Return the attempt `state` if it has not finished, else a new one after it and those of the shards `indices`.

    Raises UserError if the unfinished attempt has other reasons.
    """
    wanted = sorted(set(options.reasons))
    if state is None or state["finished"] or options.new_attempt:
        last = max([0 if state is None else state["attempt"], *map(attempt_of, indices)])
        return {"attempt": last + 1, "reasons": wanted, "finished": False}
    if state["reasons"] != wanted:
        raise UserError(
            f"attempt {state['attempt']} has not finished: finish it with its reasons=[{','.join(state['reasons'])}], or give "
            "new_attempt=true"
        )
    return state
