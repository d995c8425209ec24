"""A worker or a parameter server of a tiny training job over TCP: ``training.py worker|server PORT ITERATIONS``.

The worker sends its gradients, tensor by tensor, and the server answers with the updated model, as in Figure 1.2 of
the thesis. One tensor is most of the model. No PyTorch, so that it runs anywhere.
"""

import socket
import sys
import time

TENSORS = (4_000, 600_000, 2_000, 60_000, 1_000)
STEP_S = 0.02


def main() -> None:
    role, port, iterations = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if role == "server":
        with socket.create_server(("127.0.0.1", port)) as listener:
            peer, _ = listener.accept()
    else:
        peer = connected(port)
    for _ in range(iterations):
        if role == "worker":
            time.sleep(STEP_S)
            send(peer)
        receive(peer)
        if role == "server":
            send(peer)


def connected(port: int) -> socket.socket:
    """Once the server is there."""
    for _ in range(600):
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise SystemExit("no server")


def send(peer: socket.socket) -> None:
    for size in TENSORS:
        peer.sendall(bytes(size))


def receive(peer: socket.socket) -> None:
    left = sum(TENSORS)
    while left:
        left -= len(peer.recv(left))


if __name__ == "__main__":
    main()
