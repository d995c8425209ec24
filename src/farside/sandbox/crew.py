"""Child processes of one plane, by name: started, watched, asked and ended."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farside.admin import ask
from farside.errors import ConfigError, PeerError
from farside.log import last_line
from farside.sandbox import process
from farside.sandbox.files import until
from farside.sandbox.layout import ProcessRecord
from farside.sandbox.process import Child


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """The place of a child process: its ``farside`` subcommand, its folder, and its admin socket.

    ``words``: of one that takes options instead of a config.
    """

    subcommand: str
    folder: Path
    admin: Path
    words: tuple[str, ...] = ()

    @property
    def config(self) -> Path:
        """Its settings."""
        return self.folder / "config.toml"

    @property
    def log(self) -> Path:
        """The child's log file."""
        return self.folder / "log"


def post_in(folder: Path, subcommand: str) -> Post:
    """A child that answers in its own folder."""
    return Post(subcommand=subcommand, folder=folder, admin=folder / "admin.sock")


class Crew:
    """The children of one plane.

    Args:
        posts: By name.
        changed: Called whenever one starts.
        ended: Awaited with a child's name and exit status, negative for a signal, whenever one ends.

    Attributes:
        has_started: All have that start with the sandbox. Before, one that ends while it is waited for ends the
            sandbox, whose files go with it.
    """

    def __init__(
        self, posts: Mapping[str, Post], *, changed: Callable[[], None], ended: Callable[[str, int], Awaitable[None]]
    ) -> None:
        self.posts = posts
        self._changed = changed
        self._ended = ended
        self._children: dict[str, Child] = {}
        self._awaited: set[str] = set()  # those that have not done yet what was waited for
        self.has_started = False
        self._tasks: asyncio.TaskGroup | None = None

    def watch_in(self, tasks: asyncio.TaskGroup) -> None:
        """Children are waited for in these tasks from now on."""
        self._tasks = tasks

    async def start(self, name: str) -> None:
        """Starts it."""
        assert self._tasks is not None
        post = self.posts[name]
        words = post.words or ("--config", os.fspath(post.config))
        child = await process.start(name, (post.subcommand, *words), log=post.log)
        self._children[name] = child
        self._awaited.add(name)
        self._tasks.create_task(self._watch(child))
        self._changed()

    async def end(self, names: Iterable[str]) -> None:
        """Ends those of them that were started, together."""
        await asyncio.gather(*(self._children[name].end() for name in names if name in self._children))

    def is_running(self, name: str) -> bool:
        """Whether it was started and has not ended."""
        return name in self._children and self._children[name].is_running

    async def start_again(self, name: str, kind: str, names: Collection[str]) -> None:
        """Starts one of those of a kind that has ended.

        Raises:
            ConfigError: No name is given, there is none of that name, or it is running.
        """
        if not name:
            raise ConfigError(f"name= is missing: the {kind} to start, one of {', '.join(names)}")
        if name not in names:
            raise ConfigError(f"this sandbox has no {kind} {name!r}, only {', '.join(names)}")
        if self.is_running(name):
            raise ConfigError(f"{kind} {name} is running")
        await self.start(name)

    def pid(self, name: str) -> int:
        """Process id, 0 while it does not run."""
        return self._children[name].pid if self.is_running(name) else 0

    def said(self, name: str) -> str:
        """Last line that the child wrote, for an error message."""
        return last_line(self.posts[name].log) or "it said nothing"

    def record(self, name: str) -> ProcessRecord:
        """The child's entry in the record file."""
        post = self.posts[name]
        return ProcessRecord(
            name=name,
            pid=self.pid(name),
            admin_socket=os.fspath(post.admin),
            config=os.fspath(post.config),
            log=os.fspath(post.log),
        )

    def tell_of_end(self, name: str, status: int, again: str) -> None:
        """Print one line for the sandbox's user; ``again``: the command that starts it again.

        Nothing of one that ended before the sandbox was there: `until` raises why.
        """
        if name in self._awaited and not self.has_started:
            return
        how = self._how_ended(name, status, names_log=True)
        with contextlib.suppress(OSError):  # nobody reads it any more
            sys.stderr.write(f"farside: {name} {how}; start it again by `{again}`\n")
            sys.stderr.flush()

    async def until(self, name: str, look: Callable[[], Awaitable[bool]], what: str, *, limit_s: float) -> None:
        """Waits until it does what is looked for.

        Raises:
            PeerError: it ended instead, with the last line it wrote; or the time is up.
        """

        async def there() -> bool:
            if not self.is_running(name):
                status = self._children[name].process.returncode or 0
                raise PeerError(f"{name} {self._how_ended(name, status, names_log=self.has_started)}")
            return await look()

        await until(there, what=f"{name} {what}", limit_s=limit_s)
        self._awaited.discard(name)

    async def until_says(
        self, name: str, what: str, is_so: Callable[[Mapping[str, Any]], bool] = bool, *, limit_s: float
    ) -> None:
        """Waits until it answers with such a status; errors as those of `until`."""

        async def look() -> bool:
            with contextlib.suppress(PeerError):
                return is_so(await ask(self.posts[name].admin, "status"))
            return False

        await self.until(name, look, what, limit_s=limit_s)

    def _how_ended(self, name: str, status: int, *, names_log: bool) -> str:
        if status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        return f"ended: {self.said(name)}" + (f" (log: {self.posts[name].log})" if names_log else "")

    async def _watch(self, child: Child) -> None:
        await self._ended(child.name, await child.process.wait())
