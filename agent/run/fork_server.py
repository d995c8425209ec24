"""Fork server: starts task supervisors by fork, in milliseconds, from a process that has its modules imported.

The agent itself can't be forked: it has threads. So it keeps this process beside it, single-threaded, which takes
(folder, locked descriptor) over a socket, forks, and answers with the task supervisor's process id. The fork server
ends when the agent does; task supervisors are then init's children, and go on.

A fork server that does not answer is killed and replaced, and the task supervisor is started without it. If both have
started one, the folder's claim decides (`task_supervisor`), so that no task runs twice.
"""

import os
import signal
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path

from farside.agent.run import task_supervisor
from farside.errors import Unavailable

ANSWER_LIMIT_S = 5.0
_PID = struct.Struct("<q")
_PATH_BYTES_MAX = 4096


class ForkServer:
    """The agent's side. Close it at the end."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._pid = 0
        self._start()

    def spawn(self, folder: Path, lock: int) -> int:
        """Starts the task supervisor of this folder, which gets the lock; returns its process id.

        Raises:
            Unavailable: it could not; a new fork server is on its way, and this one is dead.
        """
        assert self._socket is not None
        try:
            socket.send_fds(self._socket, [os.fsencode(folder)], [lock])
            answer = self._socket.recv(_PID.size)
            if len(answer) == _PID.size:
                return int(_PID.unpack(answer)[0])
            why = "it has ended"
        except OSError as error:
            why = error.strerror or "no answer in time"
        self.close()
        self._start()
        raise Unavailable(f"the fork server started no task supervisor: {why}")

    def close(self) -> None:
        """Ends the process; task supervisors go on."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)

    def _start(self) -> None:
        # SEQPACKET: one message is one request with its descriptor, and the end of the other side is an empty message.
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(ANSWER_LIMIT_S)
        with other:
            other.set_inheritable(True)
            self._pid = os.posix_spawn(
                sys.executable,
                (sys.executable, "-P", "-m", "farside.agent.run.fork_server", str(other.fileno())),
                os.environ,
                setsid=True,  # Ctrl-C is the agent's
                # Task supervisors inherit this: a stop that comes before one listens waits for it.
                setsigmask=(signal.SIGUSR1,),
            )


def main() -> None:
    """``python -m farside.agent.run.fork_server SOCKET_FD``."""
    os.chdir("/")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for task supervisors: the kernel takes them away
    with socket.socket(fileno=int(sys.argv[1])) as agent:
        while True:
            # An empty message: the agent has ended, or closed its side.
            path, descriptors, _, _ = socket.recv_fds(agent, _PATH_BYTES_MAX, 1)
            if not path or not descriptors:
                return
            lock = descriptors[0]
            pid = os.fork()
            if pid == 0:
                _become_supervisor(Path(os.fsdecode(path)), lock, agent)
            # The lock is held as long as any copy of its descriptor is open: only the supervisor may keep one.
            os.close(lock)
            agent.send(_PID.pack(pid))


def _become_supervisor(folder: Path, lock: int, agent: socket.socket) -> None:
    status = 1
    try:
        # Otherwise the agent would see no end of this socket when the fork server dies.
        agent.close()
        # Signals to the fork server's session, and its end, are not the supervisor's.
        os.setsid()
        # While it is ignored, the kernel reaps children itself, and the exit code of the task would be gone.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        task_supervisor.connect_output(folder)
        task_supervisor.keep(folder, lock)
        status = 0
    except SystemExit as end:
        print(end.code, file=sys.stderr)  # noqa: T201 - its log
    except BaseException as error:  # the log gets it; this process must never return into the loop
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
