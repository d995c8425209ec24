"""Whether a job's checkpoint folder will do, found out from the nodes before the job is taken.

How it works
  One node makes the folder, as the user, where it is not there, and leaves a mark in it. All others look for the mark,
  as the user, and write a file of their own. The first takes the mark away again, and the folders it made where the
  answer is no. So what is known then is: every node that is connected now has the same folder at that path, and this
  user may read and write it there. A node that joins later is not known; one that can't use the folder when a job
  starts there fails the job with that reason.

  Nodes that run nothing of this user have no say, and those of an older version can't be asked.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping

from farside.agent import messages as m
from farside.errors import PeerError

# An agent gives up by itself before that.
LIMIT_S = 15.0


class Asker:
    """Questions to one agent, for as long as its connection lasts."""

    def __init__(self, call: Callable[[], None]) -> None:
        """``call`` is called when there is something to send."""
        self._call = call
        self._unsent: list[m.Probe | m.PowerOff] = []
        self._open: dict[str, asyncio.Future[m.Probed]] = {}
        self._is_closed = False

    def tell(self, order: m.PowerOff) -> None:
        """Send an order without waiting for an answer."""
        self._unsent.append(order)
        self._call()

    def unsent(self) -> list[m.Probe | m.PowerOff]:
        """Take what is to be sent now."""
        found, self._unsent = self._unsent, []
        return found

    def answered(self, probed: m.Probed) -> None:
        """An answer has come; one to no question is passed over."""
        future = self._open.get(probed.probe_id)
        if future is not None and not future.done():
            future.set_result(probed)

    def close(self) -> None:
        """The connection is gone, and every question with it."""
        self._is_closed = True
        for future in self._open.values():
            if not future.done():
                future.set_exception(PeerError("went away meanwhile"))

    async def ask(self, probe: m.Probe) -> m.Probed:
        """The answer; what keeps it from coming is its problem."""
        future: asyncio.Future[m.Probed] = asyncio.get_running_loop().create_future()
        self._open[probe.probe_id] = future
        self._unsent.append(probe)
        self._call()
        # The connection may have ended before this question was added, and nobody would answer it.
        if self._is_closed:
            self.close()
        try:
            async with asyncio.timeout(LIMIT_S):
                return await future
        except TimeoutError:
            return m.Probed(probe_id=probe.probe_id, problem=f"its agent does not answer within {LIMIT_S:g} s")
        except PeerError as error:
            return m.Probed(probe_id=probe.probe_id, problem=str(error))
        finally:
            # A late answer then meets no question, and `answered` passes it over.
            del self._open[probe.probe_id]


async def folder_problem(askers: Mapping[str, Asker], user: str, path: str) -> str:
    """Why this user can't keep checkpoints in this folder, in one line; empty: nothing speaks against it."""
    mark = f".farside-probe-{secrets.token_hex(8)}"

    async def ask(node: str, step: str, made: str = "") -> m.Probed:
        probe_id = f"{mark}-{step}-{node}"[: m.CAUSE_CHARS_MAX]
        return await askers[node].ask(
            m.Probe(probe_id=probe_id, step=step, user=user, path=path, mark=mark, made=made)  # type: ignore[arg-type]
        )

    others = list(askers)
    while others:
        first = others.pop(0)
        written = await ask(first, "write")
        if written.problem:
            return _line(path, first, written)
        # This node runs nothing of the user, so another one has to make the folder.
        if written.is_refused:
            continue
        seen = await asyncio.gather(*(ask(node, "see") for node in others))
        bad = [(node, one) for node, one in zip(others, seen, strict=True) if one.problem]
        await ask(first, "clear", written.made if bad else "")
        return _line(path, *bad[0]) if bad else ""
    return ""


def _line(path: str, node: str, probed: m.Probed) -> str:
    return f"checkpoint_dir: {path} on node {node}: {probed.problem}"
