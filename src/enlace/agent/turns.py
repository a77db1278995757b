"""One thing at a time, and a fair order for those who wait: each client in turn, whatever each of them has asked."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from enlace import EnlaceError


class QueueFull(EnlaceError):
    """Too many are waiting."""


class FairQueue:
    """Lets one in at a time. Of one event loop; not for several threads."""

    def __init__(self, limit: int) -> None:
        """At most `limit` may wait."""
        self._limit = limit
        self._busy = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the client whose turn is next is the first

    @property
    def ahead(self) -> int:
        """How many whoever comes now has to wait for."""
        return self._busy + sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait for a turn, and hold it. Whoever stops waiting loses their place and nobody else's.

        Raises:
            QueueFull: as many wait as may, and none of them has more than their part.
        """
        if self._busy:
            await self._wait(client)
        self._busy = True
        try:
            yield
        finally:
            self._next()

    async def _wait(self, client: str) -> None:
        if self.ahead > self._limit:
            self._make_room(client)
        place = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._leave(client, place)
            elif place.exception() is None:
                self._next()  # the turn came at the moment of leaving
            raise

    def _make_room(self, client: str) -> None:
        """Whoever has most waiting gives up their newest, for one who would still have fewer."""
        full = QueueFull("Hay demasiadas preguntas esperando. Prueba dentro de un rato.")
        most = max(self._waiting.values(), key=len, default=deque())
        if len(most) <= len(self._waiting.get(client, ())) + 1:
            raise full
        place = most.pop()
        if not place.done():
            place.set_exception(full)

    def _leave(self, client: str, place: asyncio.Future[None]) -> None:
        places = self._waiting.get(client, deque())
        if place in places:
            places.remove(place)
        if not places:
            self._waiting.pop(client, None)

    def _next(self) -> None:
        """Let in the next who waits: the first of the client whose turn it is, who then goes behind the others."""
        while self._waiting:
            client = next(iter(self._waiting))
            places = self._waiting.pop(client)
            place = places.popleft()
            if places:
                self._waiting[client] = places
            if not place.done():  # it may have been cancelled a moment ago
                place.set_result(None)
                return
        self._busy = False
