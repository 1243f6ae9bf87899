"""A replacement of `socket.getaddrinfo` whose names are slow, silent or broken."""

import socket
import threading
import time
from collections import Counter
from typing import Any

from tests.patience import PATIENCE_S


class Names:
    """Names below `test` have the address 127.0.0.1, after `delay_s`; `bad` names behave as `failure` says.

    `failure` is an exception, a list of addresses, or None for names whose look-up never returns (until `release`).
    """

    def __init__(self, delay_s: float = 0.0, failure: Exception | list[str] | None = None) -> None:
        self.delay_s, self.failure = delay_s, failure
        self.asked: Counter[str] = Counter()
        self.released = threading.Event()
        self._original = socket.getaddrinfo

    def getaddrinfo(self, host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if not str(host).removesuffix(".").endswith(".test"):
            return self._original(host, port, *args, **options)
        self.asked[host] += 1
        time.sleep(self.delay_s)
        addresses = ["127.0.0.1"]
        if host.startswith("bad"):
            if self.failure is None:
                self.released.wait(2 * PATIENCE_S)
                raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
            if isinstance(self.failure, Exception):
                raise self.failure
            addresses = self.failure
        return [
            (socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port or 0))
            for address in addresses
        ]
