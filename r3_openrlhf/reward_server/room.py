"""Room for what is accepted and not yet answered, shared so that no client can keep the others out. Pure, no clock."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TypeVar

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Client:
    """Who asks. name: what the caller calls itself, several programs of one address are told apart by it; "" is a name too."""

    address: str
    name: str


class Room:
    """`size` places (items, or bytes of items) that are shared with dynamic thresholds.

    An address may hold as much as it leaves free to the other addresses, a name of it as much as it leaves free to the
    other names of that address. So however much one client has, there is room for one that has nothing. One request takes
    at most half of what its client may still take, so a small one finds a place where a large one does not.
    Into an empty room goes any request; then it counts for an eighth at most, else it would keep everybody out.
    After Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998, with alpha = 1.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._held = 0
        self._by_address: Counter[str] = Counter()
        self._by_client: Counter[Client] = Counter()

    def has_place(self, client: Client, amount: int) -> bool:
        """May this client have so many more (items, or bytes)?"""
        if not self._held:
            return True
        for_address = (self._size - self._held - self._by_address[client.address]) / 2
        for_client = (for_address - self._by_client[client]) / 2
        return amount <= (for_client / 2 if self._by_client[client] else for_client)

    def take(self, client: Client, amount: int) -> int:
        """The places that this takes, to be given back."""
        places = amount if self._held else min(amount, max(1, self._size // 8))
        self._add(client, places)
        return places

    def give_back(self, client: Client, places: int) -> None:
        """Free what `take` returned."""
        self._add(client, -places)

    def _add(self, client: Client, places: int) -> None:
        self._held += places
        _add_to(self._by_address, client.address, places)
        _add_to(self._by_client, client, places)


def _add_to(counter: Counter[Key], key: Key, places: int) -> None:
    counter[key] += places
    if not counter[key]:
        del counter[key]
