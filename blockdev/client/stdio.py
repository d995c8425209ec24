"""`farside blockdev -s`: serve one client on standard input and output, without supervisor or takeover, then end.

Standard input must be a socket, as inetd and libnbd's connect_command make it: the engine reads and writes one socket.
Who comes by TCP, as from inetd, is let in as by a listener of the device's own.
"""

import asyncio
import signal
import socket
import stat
import sys
from os import fstat

from farside.blockdev.client.listener import Clients, Listener
from farside.blockdev.client.stream import door_of, until_ready
from farside.blockdev.device import BlockDevice
from farside.blockdev.params import engine_params, export_of
from farside.blockdev.task import Tasks
from farside.config import BlockdevConfig
from farside.errors import ConfigError
from farside.kmod_shim.engine.binding import Device
from farside.kmod_shim.engine.tls import Wants
from farside.own_task import wait_first

RELEASE_LIMIT_S = 1.0  # for donors to confirm that their slabs are free


def serve_stdio(config: BlockdevConfig, fds: dict[str, int]) -> int:
    """Serves one client and returns the exit code: 0, or 1 when it did not get through the handshake.

    Raises:
        ConfigError: standard input is no socket.
    """
    if not stat.S_ISSOCK(fstat(sys.stdin.fileno()).st_mode):
        raise ConfigError(
            "standard input is not a socket", hint="start it from inetd, or with libnbd's connect_command"
        )  # fmt: skip
    return asyncio.run(_serve(config, fds))


async def _serve(config: BlockdevConfig, fds: dict[str, int]) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    engine = Device(engine_params(config), fds["state"], fds.get("disk", -1))
    try:
        async with Tasks() as tasks:
            device = BlockDevice.over(engine, config, fds["control"], tasks)
            # One worker for the one client; when that leaves, so do we.
            clients = Clients(engine, 1, hold=lambda worker, fd: None, forget=lambda worker: stopping.set())
            device.events.on_conn_closed = clients.closed
            device.start()
            client = socket.socket(fileno=sys.stdin.fileno())
            listener = Listener(
                export_of(config), clients, tasks, takes_unproved=config.listen_unproved, tls=door_of(config, must=True)
            )
            worker: int | None = None

            async def let_in() -> None:
                nonlocal worker
                worker = await listener.welcome(client)

            # Donors may take long to come: meanwhile a signal counts, and so does a client that gives up.
            await wait_first(device.offered.wait(), _hung_up(client), stopping.wait())
            if device.offered.is_set():
                await wait_first(let_in(), stopping.wait())
            if worker is not None:
                await stopping.wait()
            await device.leave(RELEASE_LIMIT_S)
            return 0 if worker is not None else 1
    finally:
        engine.destroy()


async def _hung_up(client: socket.socket) -> None:
    """Returns when the client has left; it has nothing to say before our greeting, so what can be read is its end."""
    await until_ready(client, Wants.READ)
    if client.recv(1, socket.MSG_PEEK):
        await asyncio.Event().wait()  # it sends first, against the protocol: the handshake deals with it
