"""uvicorn's connections, of which idle ones give way.

uvicorn (protocols/http/h11_impl.py) counts a connection that never sends a request like a busy one,
for ever. Enough of them, from any client, and all other clients get 503.
"""

from __future__ import annotations

import asyncio
from operator import attrgetter

from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """At `limit_concurrency`, close the longest idle connection for a new one: requests count."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Its first byte must come as soon as the next request of one that is kept alive."""
        super().connection_made(transport)
        self.read_at = self.loop.time()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        if self.limit_concurrency is None or len(self.connections) < self.limit_concurrency:
            return
        others = [one for one in self.connections if isinstance(one, Connection) and one is not self]
        idle = [one for one in others if one.cycle is None or one.cycle.response_complete]
        if idle:
            oldest = min(idle, key=attrgetter("read_at"))
            oldest.transport.close()
            # uvloop reads the new one's request before it tells that this one is lost
            self.connections.discard(oldest)

    def data_received(self, data: bytes) -> None:
        """A request, or a part of one."""
        self.read_at = self.loop.time()
        super().data_received(data)
