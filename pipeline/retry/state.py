"""The state of the attempts at the rows of an output, `_retry.json`."""

import json
from collections.abc import Iterable

from common.errors import UserError
from common.text import one_line
from pipeline.retry.options import RetryOptions
from pipeline.write.store import Store
from schemas.attempts import MAX_ATTEMPT, attempt_of
from schemas.files import RETRY_FILE
from schemas.job import RetryState


def read_state(store: Store) -> RetryState | None:
    """Return the last attempt, None before the first. Raises UserError for a damaged file."""
    content = store.read(RETRY_FILE)
    if content is None:
        return None
    try:
        value = json.loads(content)
        attempt, reasons, finished = value["attempt"], value["reasons"], value["finished"]
        is_state = type(attempt) is int and 1 <= attempt <= MAX_ATTEMPT and isinstance(finished, bool)
        if not is_state or not isinstance(reasons, list) or not all(isinstance(reason, str) for reason in reasons):
            raise ValueError("it is no state of an attempt")
        return {"attempt": attempt, "reasons": reasons, "finished": finished}
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise UserError(
            f"{store.url(RETRY_FILE)} is damaged ({one_line(error)}); remove it, and the next run is a new attempt"
        ) from error


def write_state(store: Store, state: RetryState) -> None:
    """Write the state of an attempt. Raises UserError if the output cannot be written."""
    store.write(RETRY_FILE, json.dumps(state, sort_keys=True))


def next_attempt(state: RetryState | None, options: RetryOptions, indices: Iterable[int]) -> RetryState:
    """Return the attempt `state` if it has not finished, else a new one after it and those of the shards `indices`.

    Raises UserError if the unfinished attempt has other reasons, and after the last attempt.
    """
    wanted = sorted(set(options.reasons))
    if state is None or state["finished"] or options.new_attempt:
        last = max([0 if state is None else state["attempt"], *map(attempt_of, indices)])
        if last >= MAX_ATTEMPT:
            raise UserError(
                f"the output has {last} attempts, and more are not possible; pipeline.reshard makes an output with the "
                "last result of each row"
            )
        return {"attempt": last + 1, "reasons": wanted, "finished": False}
    if state["reasons"] != wanted:
        raise UserError(
            f"attempt {state['attempt']} has not finished: finish it with its reasons=[{','.join(state['reasons'])}], or give "
            "new_attempt=true"
        )
    return state
