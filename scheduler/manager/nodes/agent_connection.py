"""One agent's WebSocket: how it is let in, and its frames with their codes.

An agent on ws:// offers its proof (agent/mutual_proof.py) and gets ours with the answer. One that shows its token or
certificate instead is proved by TLS or, on the unix socket, by the kernel. Over ws:// only agents of the version before
show a token: anybody who took this port in our place has it then.
"""

import asyncio
import secrets
from contextlib import suppress

from fastapi import HTTPException
from starlette.responses import JSONResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from farside.agent import mutual_proof, protocol
from farside.errors import FarsideError, RemoteProtocolError
from farside.scheduler.manager.auth.caller import PROVED_KEY, UNTOLD, Callers, is_peer

_HEADER = mutual_proof.HEADER.lower().encode()


class AgentConnection:
    """A connection that was let in; only its owner says what it may do.

    Attributes:
        is_proved: Each side has proved to the other what it is.
        lasting_key: SHA-256 in hex of the token that the agent has from now on, if it came by an invitation.
    """

    def __init__(
        self, socket: WebSocket, frames: mutual_proof.Frames, *, is_proved: bool, lasting_key: str = ""
    ) -> None:
        self.socket = socket
        self.is_proved = is_proved
        self.lasting_key = lasting_key
        self._frames = frames
        self._sending = asyncio.Lock()

    async def send(self, frame: str) -> None:
        """Sends a frame of the protocol."""
        # A code counts the frames before it, so they leave in the order in which they are sealed.
        async with self._sending:
            await self.socket.send_text(self._frames.seal(frame))

    async def receive(self) -> protocol.Text:
        """The next frame of the protocol.

        Raises:
            RemoteProtocolError: it is of bytes, or not of the agent that proved itself.
        """
        try:
            frame = await self.socket.receive_text()
        except KeyError:  # what starlette says to a frame of bytes
            text = "frames of this protocol are text"
            raise RemoteProtocolError(text, code=protocol.CloseCode.MALFORMED) from None
        return self._frames.open(frame)

    def hello_came(self) -> None:
        """Stop counting the connection among those that anybody may have opened: its agent proved itself."""
        told = self.socket.scope.get("state", {}).get(UNTOLD)
        if told is not None:
            told()

    def settle(self) -> None:
        """Its invitation is used: from now on the agent is known by the lasting key."""
        self.socket.scope[PROVED_KEY] = self.lasting_key

    async def close(self, code: int, reason: str) -> None:
        """Hangs up, also where the agent was faster."""
        with suppress(RuntimeError, WebSocketDisconnect):
            await self.socket.close(code, reason[: protocol.REASON_BYTES_MAX])


async def let_in(socket: WebSocket, callers: Callers, now_s: float, *, takes_unproved: bool) -> AgentConnection | str:
    """Accepts an agent, or answers why not, and returns that reason.

    ``takes_unproved``: so are agents of the version before, over ws://.
    """
    try:
        offered = socket.headers.get(mutual_proof.HEADER)
        if offered is None or "authorization" in socket.headers or _is_near(socket):
            return await _let_in_by_token(socket, callers, takes_unproved=takes_unproved)
        return await _let_in_by_proof(socket, callers, offered, now_s)
    except HTTPException as error:
        # The header tells an agent that the proof is spoken here: no reason to take the manager for one of before.
        headers = {mutual_proof.HEADER: mutual_proof.VERSION}
        await socket.send_denial_response(JSONResponse({"detail": error.detail}, error.status_code, headers))
        return str(error.detail)
    except FarsideError as error:  # the tokens' file is not usable: strangers need not know more
        detail = "who has a token can't be looked up; the manager's log says why"
        await socket.send_denial_response(JSONResponse({"detail": detail}, 503))
        return str(error)


async def _let_in_by_token(socket: WebSocket, callers: Callers, *, takes_unproved: bool) -> AgentConnection:
    caller = callers.of(socket)
    is_proved = _is_near(socket) or socket.scope.get("scheme") == "wss"
    if not is_proved and not takes_unproved:
        text = f"{caller.told}: sends its token to whoever listens at this port; update its Farside, or use wss://"
        raise HTTPException(403, text)
    await socket.accept()
    return AgentConnection(socket, mutual_proof.PlainFrames(), is_proved=is_proved)


async def _let_in_by_proof(socket: WebSocket, callers: Callers, offered: str, now_s: float) -> AgentConnection:
    try:
        offer = mutual_proof.read_offer(offered)
    except RemoteProtocolError as error:
        raise HTTPException(400, str(error)) from error
    key = callers.key_named(offer.key_id, now_s)
    # Looked up again whenever the caller is asked for, so that a token that is taken away counts no more.
    socket.scope[PROVED_KEY] = key.secret.hex()
    header, frames = mutual_proof.answer(key.secret, offer, secrets.token_bytes(mutual_proof.NONCE_BYTES))
    await socket.accept(headers=[(_HEADER, header.encode())])
    lasting_key = mutual_proof.key_of(frames.lasting_token).hex() if key.is_invitation else ""
    return AgentConnection(socket, frames, is_proved=True, lasting_key=lasting_key)


def _is_near(socket: WebSocket) -> bool:
    return socket.client is not None and is_peer(socket.client.host)
