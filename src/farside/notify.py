"""What a process tells the service manager that started it: sd_notify(3), without its library."""

import os
import socket
from contextlib import suppress


def notify_systemd(message: str) -> None:
    """Tells ``message``, such as READY=1; nothing happens where nobody wants to hear it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock, suppress(OSError):
        sock.sendto(message.encode(), "\0" + address[1:] if address.startswith("@") else address)
