"""Connections of the reward service, bounded before anything of a request is looked at.

uvicorn has no time limit for headers and bodies and no bound per peer. Its h11 protocol bounds the bytes of the headers;
the one for httptools does not.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_HEADER_BYTES = 32 * 2**10
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: 43\r\nretry-after: 1\r\n"
    b'connection: close\r\n\r\n{"detail":"too many connections are open"} '
)


def bounded_protocol(  # noqa: C901 - a class of small methods
    *, max_connections: int, max_per_peer: int, read_timeout_s: float
) -> type[H11Protocol]:
    """A protocol for uvicorn.Config(http=...). A connection over a bound is answered 503 and closed; one that has not sent
    its headers, or then its body, in time is closed."""
    open_of: Counter[str] = Counter()

    class BoundedProtocol(H11Protocol):
        _peer: str | None = None  # as long as it is counted
        _reader: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's does
            super().connection_made(transport)
            peer = self.client[0] if self.client else ""
            if open_of[peer] >= max_per_peer or open_of.total() >= max_connections:
                transport.write(_BUSY)
                transport.close()
                return
            open_of[peer] += 1
            self._peer = peer
            self._expect_more()

        def connection_lost(self, exc: Exception | None) -> None:
            self._expect_nothing()
            if self._peer is not None:
                open_of[self._peer] -= 1
                if not open_of[self._peer]:
                    del open_of[self._peer]
                self._peer = None
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._peer is None:  # turned away
                return
            if self._reader is None and self.conn.their_state is h11.IDLE:
                self._expect_more()
            before = self.conn.their_state
            super().data_received(data)
            after = self.conn.their_state
            if after is h11.SEND_BODY and before is not h11.SEND_BODY:
                self._expect_nothing()
                self._expect_more()  # the body has a time of its own
            elif after not in (h11.IDLE, h11.SEND_BODY):
                self._expect_nothing()

        def _expect_more(self) -> None:
            self._reader = self.loop.call_later(read_timeout_s, self._give_up)

        def _expect_nothing(self) -> None:
            if self._reader is not None:
                self._reader.cancel()
                self._reader = None

        def _give_up(self) -> None:
            self._reader = None
            self.transport.abort()

    return BoundedProtocol
