"""The newest of what users' jobs teach, with a bound on what is one user's. PURE."""

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

Taught = TypeVar("Taught")


class NewestByUser(Generic[Taught]):
    """The newest of what was added, the oldest first: at most ``most``, and ``of_one_user`` of each user's.

    A user who has so many there pushes out own ones alone. It follows from what was added in its order.

    Attributes:
        seen: How many were added, those that are gone among them.
    """

    def __init__(self, most: int, of_one_user: int, user_of: Callable[[Taught], Hashable]) -> None:
        """``user_of``: whose one is; None: nobody's, of which there may be as many as are kept."""
        self.seen = 0
        self._most, self._of_one_user, self._user_of = most, of_one_user, user_of
        self._kept: dict[int, Taught] = {}
        self._by_user: dict[Hashable, deque[int]] = {}  # those with a user, by number

    def __len__(self) -> int:
        """How many are there."""
        return len(self._kept)

    def __iter__(self) -> Iterator[Taught]:
        """Those that are there."""
        return iter(self._kept.values())

    def __contains__(self, one: object) -> bool:
        """Whether an equal one is there."""
        return one in self._kept.values()

    def add(self, one: Taught) -> None:
        """Add the newest."""
        user = self._user_of(one)
        own = self._by_user.get(user)
        if own is not None and len(own) == self._of_one_user:
            self._drop(own[0])
        elif len(self._kept) == self._most:
            self._drop(next(iter(self._kept)))
        if user is not None:
            self._by_user.setdefault(user, deque()).append(self.seen)
        self._kept[self.seen] = one
        self.seen += 1

    def clear(self) -> None:
        """Drop all of them."""
        self._kept.clear()
        self._by_user.clear()

    def _drop(self, number: int) -> None:
        user = self._user_of(self._kept.pop(number))
        if user is not None:
            self._by_user[user].popleft()  # of each user's the oldest goes first
            if not self._by_user[user]:
                del self._by_user[user]
