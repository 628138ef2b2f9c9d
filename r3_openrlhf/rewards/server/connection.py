"""uvicorn's connections, of which idle ones give way.

uvicorn (protocols/http/h11_impl.py) counts a connection that never sends a request like a busy one,
for ever. Enough of them, from any client, and all other clients get 503.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """At `limit_concurrency`, close the longest idle connection for a new one: requests count."""

    @property
    def _idle(self) -> dict[Connection, None]:
        """Without a whole request that waits for its answer, the longest idle one first."""
        return self.server_state.__dict__.setdefault("idle", {})

    def _note(self) -> None:
        self._idle.pop(self, None)
        if not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete):
            self._idle[self] = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Its first byte must come as soon as the next request of one that is kept alive."""
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        if self._idle and self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            oldest = next(iter(self._idle))
            del self._idle[oldest]
            oldest.transport.close()
            self.connections.discard(
                oldest
            )  # uvloop reads the new one's request before it tells that this one is lost
        self._note()

    def data_received(self, data: bytes) -> None:
        """A request, or a part of one."""
        super().data_received(data)
        self._note()

    def on_response_complete(self) -> None:
        """Idle again, unless the next request is there already."""
        super().on_response_complete()
        self._note()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        super().connection_lost(exc)
        self._idle.pop(self, None)
