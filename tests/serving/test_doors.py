"""The doors: what clients are told, and what hostile ones cost others."""

import asyncio
import math
import os
import socket
import ssl
import struct
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.listen import BACKLOG, open_listener
from farside.log import Rarely
from farside.serve import door_server
from farside.serve.door_server import DoorConnection, DoorServer, counted_listener, door_connections
from farside.serve.http1 import connection
from farside.serve.http2.budget import Share, Unsent
from farside.serve.service import Service
from farside.tls import TlsFiles, client_tls
from tests.serving.front import close_gate, grpc_front, http_front, in_loop, model_file, pool_of
from tests.support.certificates import SERVER, Authority
from tests.support.ports import free_port

MODEL = model_file(shape=(2,))
SOMAXCONN = int(Path("/proc/sys/net/core/somaxconn").read_text())
ONE = {"inputs": [{"name": "input", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}


async def ask(
    port: int, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None, method: str = ""
) -> tuple[int, Mapping[str, str], bytes]:
    """One request on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    method = method or ("GET" if body is None else "POST")
    told = {"Host": "h", "Connection": "close", **({"Content-Length": str(len(body))} if body is not None else {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in (told | dict(headers or {})).items())
    writer.write(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + (body or b""))
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    head, _, rest = answer.partition(b"\r\n\r\n")
    status, *fields = head.decode().split("\r\n")
    return int(status.split()[1]), {k.lower(): v.strip() for k, _, v in (one.partition(":") for one in fields)}, rest


@in_loop
async def test_http_tells_of_server_and_models_and_infers() -> None:
    port = free_port()
    async with http_front([MODEL], port):
        assert (await ask(port, "/v2/health/live"))[0] == 200
        assert (await ask(port, "/v2/health/ready"))[0] == 200
        assert (await ask(port, "/v2/models/twice/ready"))[0] == 200
        assert msgspec.json.decode((await ask(port, "/v2"))[2])["name"] == "farside"
        about = msgspec.json.decode((await ask(port, "/v2/models/twice/versions/1"))[2])
        assert about["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, 2]}]
        config = msgspec.json.decode((await ask(port, "/v2/models/twice/config"))[2])
        assert config["max_batch_size"] == 8

        status, headers, body = await ask(port, "/v2/models/twice/infer", msgspec.json.encode(ONE))

        assert status == 200
        assert headers["content-type"] == "application/json"
        assert msgspec.json.decode(body)["outputs"][0]["data"] == [2.0, 4.0]
        stats = msgspec.json.decode((await ask(port, "/v2/models/stats"))[2])["model_stats"][0]
        assert stats["inference_count"] == 1
        assert stats["inference_stats"]["success"]["count"] == 1
        listed = msgspec.json.decode((await ask(port, "/v2/repository/index", b""))[2])
        assert listed == [{"name": "twice", "version": "1", "state": "READY", "reason": ""}]


@in_loop
async def test_each_error_has_its_status_and_one_line() -> None:
    port, good = free_port(), msgspec.json.encode(ONE)
    infer = "/v2/models/twice/infer"
    async with http_front([MODEL], port, latency_s=0.05) as (pool, executor):
        for path, body, headers, status in (
            ("/", None, {}, 404),
            ("/v2/models/nope", None, {}, 404),
            ("/v2/models/twice/versions/7", None, {}, 404),
            ("/v2/models/nope/infer", good, {}, 404),
            (infer, None, {}, 405),
            (infer, b"{}", {}, 400),
            (infer, good, {"Inference-Header-Content-Length": "9999"}, 400),
            (infer, good, {"Content-Encoding": "gzip"}, 415),
            (infer, bytes(200_000), {}, 413),
            (infer, msgspec.json.encode({**ONE, "parameters": {"timeout": 10_000}}), {}, 504),
            ("/v2/repository/models/twice/load", b"", {}, 501),
            ("/v2/systemsharedmemory/status", None, {}, 501),
            ("/v2/trace/setting", None, {}, 501),
            ("/v2/models/twice/trace/setting", None, {}, 501),
            ("/v2/models/twice/trace/setting", b"{}", {}, 501),
            ("/v2/models/twice/versions/1/trace/setting", b"{}", {}, 501),
        ):
            answer, _, text = await ask(port, path, body, headers)
            line = msgspec.json.decode(text)["error"]
            assert (answer, "\n" in line) == (status, False), (path, line)
        executor.raises = "bad weights"
        assert (await ask(port, infer, good))[0] == 500
        pool.switch([], {})
        status, told, _ = await ask(port, infer, good)
        assert (status, told["retry-after"]) == (503, "1")
        assert (await ask(port, "/v2/health/ready"))[0] == 503
        counts = pool.counts["twice"]
        assert (counts.dropped, counts.failed, counts.rejected) == (1, 1, 1)
        assert counts.refused == 9


@in_loop
async def test_a_path_is_answered_by_its_own_method_alone() -> None:
    port, model = free_port(), "/models/twice"
    told = ("", "/health/live", "/health/ready", "/models/stats", model, f"{model}/ready", f"{model}/config")
    async with http_front([MODEL], port):
        for path in (*told, f"{model}/stats"):
            by = [(await ask(port, f"/v2{path}", method=one))[0] for one in ("GET", "HEAD", "POST", "PUT", "DELETE")]
            assert by == [200, 200, 405, 405, 405], path
        for path in ("/repository/index", "/models/twice/infer"):
            assert (await ask(port, f"/v2{path}"))[0] == 405, path


@in_loop
async def test_the_index_takes_an_empty_body_or_a_json_object_alone() -> None:
    port, path = free_port(), "/v2/repository/index"
    async with http_front([MODEL], port):
        for body in (b"", b"{}", b'{"ready": true}'):
            assert (await ask(port, path, body))[0] == 200, body
        for body in (b"garbage", b"[1]", b"3", b"[" * 5000, b"\xff", b'"\xff"'):
            assert (await ask(port, path, body))[0] == 400, body
        assert (await ask(port, path, bytes(70_000)))[0] == 413
        assert (await ask(port, path, b"{}", {"Content-Encoding": "gzip"}))[0] == 415


@in_loop
async def test_no_transfer_coding_is_taken_but_chunked() -> None:
    port, good = free_port(), msgspec.json.encode(ONE)
    async with http_front([MODEL], port):
        for coding, status in (("chunked", 200), ("Chunked", 200), ("gzip, chunked", 501)):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            lines = f"POST /v2/models/twice/infer HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: {coding}\r\n\r\n"
            writer.write(lines.encode() + b"%x\r\n%b\r\n0\r\n\r\n" % (len(good), good))
            assert int((await asyncio.wait_for(reader.readline(), 60)).split()[1]) == status, coding
            writer.close()


@in_loop
async def test_a_target_in_absolute_form_is_what_its_path_is() -> None:
    port, good = free_port(), msgspec.json.encode(ONE)
    async with http_front([MODEL], port):
        for origin in ("http://x", "HTTPS://[::1]:8000", "http://x:80"):
            assert (await ask(port, f"{origin}/v2?a=/b"))[0] == 200, origin
            assert (await ask(port, f"{origin}/v2/models/twice/infer", good))[0] == 200, origin
            assert (await ask(port, f"{origin}/v2/models/nope/infer", good))[0] == 404, origin
        for nowhere in ("http://x", "http://x?/v2", "ftp://x/v2", "/http://x/v2"):
            assert (await ask(port, nowhere))[0] == 404, nowhere


@in_loop
async def test_codings_have_no_case_and_values_no_blanks_around_them() -> None:
    port, good = free_port(), msgspec.json.encode(ONE)
    async with http_front([MODEL], port):
        for more in ({"Content-Encoding": "Identity"}, {"Inference-Header-Content-Length": f"{len(good)} "}):
            assert (await ask(port, "/v2/models/twice/infer", good, more))[0] == 200, more


@in_loop
async def test_under_overload_requests_are_refused_by_http_before_they_are_read() -> None:
    port = free_port()
    async with http_front([MODEL], port, slo_s=0.2) as (pool, executor):
        close_gate(pool, "twice")

        status, headers, body = await ask(port, "/v2/models/twice/infer", b"never parsed")

        assert (status, headers["content-type"]) == (504, "application/json")
        assert msgspec.json.decode(body) == {"error": "twice can not answer within 200 ms now"}
        assert (pool.counts["twice"].dropped, pool.counts["twice"].refused, executor.ran) == (1, 0, [])
        pool.queues["twice"].gate.plan(1.0)
        assert (await ask(port, "/v2/models/twice/infer", b"never parsed"))[0] == 400
        assert (await ask(port, "/v2/models/twice/infer", msgspec.json.encode(ONE)))[0] == 200


@in_loop
async def test_under_overload_requests_are_refused_by_grpc() -> None:
    async with grpc_front([MODEL]) as (address, pool, _):
        grpc, client = import_module("grpc"), import_module("tritonclient.grpc.service_pb2_grpc")
        messages = import_module("tritonclient.grpc.service_pb2")
        async with grpc.aio.insecure_channel(address) as channel:
            stub = client.GRPCInferenceServiceStub(channel)
            await stub.ServerLive(messages.ServerLiveRequest())
            close_gate(pool, "twice")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.ModelInfer(messages.ModelInferRequest(model_name="twice"))

    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert (pool.counts["twice"].dropped, pool.counts["twice"].refused) == (1, 0)


@in_loop
async def test_a_deployment_with_tokens_answers_nobody_without_one() -> None:
    port = free_port()
    async with http_front([MODEL], port, tokens=("sesame", "other")):
        assert (await ask(port, "/v2"))[0] == 401
        assert (await ask(port, "/v2", headers={"Authorization": "Bearer nope"}))[0] == 401
        assert (await ask(port, "/v2", headers={"Authorization": "Basic sesame"}))[0] == 401
        assert (await ask(port, "/v2", headers={"Authorization": "Bearer other"}))[0] == 200


@in_loop
async def test_a_client_that_hangs_up_takes_its_request_with_it() -> None:
    port = free_port()
    async with http_front([MODEL], port) as (pool, executor):
        executor.is_hung = True
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        body = msgspec.json.encode(ONE)
        writer.write(
            b"POST /v2/models/twice/infer HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        async with asyncio.timeout(60):
            while not pool.turns[0].batches:
                await asyncio.sleep(0.005)
            writer.transport.abort()
            while not pool.counts["twice"].cancelled:
                await asyncio.sleep(0.005)


@in_loop
async def test_slow_clients_are_closed_and_cost_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_LIMIT_S", 1.0)
    monkeypatch.setattr(connection, "BODY_LIMIT_S", 1.0)
    monkeypatch.setattr(door_server, "CONNECTIONS_MAX", 4)
    port = free_port()
    async with http_front([MODEL], port):
        slow = []
        for start in (b"", b"POST /v2", b"POST /v2/models/twice/infer HTTP/1.1\r\nContent-Length: 90\r\n\r\n{") * 3:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(start)
            slow.append((reader, writer))

        assert (await ask(port, "/v2/models/twice/infer", msgspec.json.encode(ONE)))[0] == 200
        for reader, writer in slow:
            try:
                assert await asyncio.wait_for(reader.read(), 60) == b""
            except ConnectionResetError:
                pass
            writer.close()


@settings(deadline=None, max_examples=15)
@given(data=st.binary(max_size=300), cut=st.integers(0, 300))
def test_random_bytes_never_crash_the_http_door(data: bytes, cut: int) -> None:
    @in_loop
    async def test() -> None:
        port = free_port()
        async with http_front([MODEL], port):
            good = msgspec.json.encode(ONE)
            start = b"POST /v2/models/twice/infer HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(good)
            for stuff in (data, (start + good)[:cut] + data):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(stuff)
                writer.transport.write_eof()
                writer.close()
            assert (await ask(port, "/v2/models/twice/infer", good))[0] == 200

    test()


# ---- gRPC


@in_loop
async def test_grpc_tells_of_server_and_models_and_infers() -> None:
    async with grpc_front([MODEL]) as (address, pool, _):
        client: Any = import_module("tritonclient.grpc.aio")
        async with client.InferenceServerClient(address) as asked:
            assert await asked.is_server_live()
            assert await asked.is_server_ready()
            assert await asked.is_model_ready("twice", "1")
            assert (await asked.get_server_metadata()).name == "farside"
            assert (await asked.get_model_metadata("twice")).inputs[0].shape == [-1, 2]
            assert (await asked.get_model_config("twice")).config.max_batch_size == 8
            assert (await asked.get_model_repository_index()).models[0].state == "READY"
            given = client.InferInput("input", [3, 2], "FP32")
            given.set_data_from_numpy(np.arange(6, dtype="f4").reshape(3, 2))

            answer = await asked.infer("twice", [given], request_id="q")

            assert answer.as_numpy("output").tolist() == [[0, 2], [4, 6], [8, 10]]
            assert answer.get_response().id == "q"
            stats = await asked.get_inference_statistics("twice")
            assert stats.model_stats[0].inference_count == 3
            assert pool.counts["twice"].met == 1


@in_loop
async def test_each_error_of_grpc_has_its_status() -> None:
    async with grpc_front([MODEL], ("sesame",)) as (address, pool, executor):
        import grpc
        from tritonclient.grpc import service_pb2_grpc

        from farside.serve.grpc_message import service_pb2

        async def status(call: str, request: Any, token: str = "sesame", **options: Any) -> str:
            headers = (("authorization", f"Bearer {token}"),)
            with pytest.raises(grpc.RpcError) as raised:
                await getattr(stub, call)(request, metadata=headers, **options)
            return str(raised.value.code().name)

        def infer(**changed: Any) -> Any:
            tensor = {"name": "input", "shape": [1, 2], "datatype": "FP32", **changed}
            raw = [] if "contents" in tensor else [bytes(8)]
            return service_pb2.ModelInferRequest(model_name="twice", inputs=[tensor], raw_input_contents=raw)

        async with grpc.aio.insecure_channel(address) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            for call in ("ServerMetadata", "ServerLive", "ServerReady"):
                asked = getattr(service_pb2, f"{call}Request")()
                assert await status(call, asked, "no") == "UNAUTHENTICATED"
            huge = service_pb2.ModelInferRequest(model_name="twice", raw_input_contents=[bytes(1 << 20)])
            assert await status("ModelInfer", huge) == "RESOURCE_EXHAUSTED"
            assert await status("ModelReady", service_pb2.ModelReadyRequest(name="no")) == "NOT_FOUND"
            assert await status("ModelInfer", infer(shape=[2, 2])) == "INVALID_ARGUMENT"
            assert await status("ModelInfer", infer(contents={"int_contents": [1, 2]})) == "INVALID_ARGUMENT"
            assert await status("ModelInfer", infer(contents={"fp32_contents": [1]})) == "INVALID_ARGUMENT"
            both = infer()
            both.inputs[0].contents.fp32_contents.extend([1, 2])
            assert await status("ModelInfer", both) == "INVALID_ARGUMENT"
            load = service_pb2.RepositoryModelLoadRequest(model_name="twice")
            assert await status("RepositoryModelLoad", load) == "UNIMPLEMENTED"
            executor.raises = "bad weights"
            assert await status("ModelInfer", infer()) == "INTERNAL"
            executor.raises = ""
            good = infer(contents={"fp32_contents": [1, math.inf]})
            answer = await stub.ModelInfer(good, metadata=(("authorization", "Bearer sesame"),))
            assert np.frombuffer(answer.raw_output_contents[0], "f4").tolist() == [2.0, math.inf]
            pool.switch([], {})
            assert await status("ModelInfer", infer()) == "UNAVAILABLE"


@in_loop
async def test_connections_that_never_speak_tls_give_way_to_one_that_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_server, "CONNECTIONS_MAX", 4)
    authority = Authority(tmp_path)
    made = authority.make("front", says=SERVER)
    port = free_port()
    secure = TlsFiles(cert=made.cert, key=made.key)
    async with http_front([MODEL], port, secure=secure), asyncio.timeout(60):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
        for reader, _ in silent[:8]:
            assert await reader.read() == b""
        trusted = client_tls(TlsFiles(ca=authority.cert))
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted, server_hostname="127.0.0.1")
        writer.write(b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        assert not silent[-1][0].at_eof()
        for _, one in (*silent, (reader, writer)):
            one.close()


class NoState:
    """Takes nothing apart."""

    def lost(self) -> None:
        """Holds nothing."""


class Wire(asyncio.Transport):
    """A connection from some address, of which only that matters."""

    def __init__(self, address: str) -> None:
        super().__init__({"peername": (address, 1), "socket": socket.socket()})
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


@pytest.mark.parametrize("is_tls", [False, True])
@in_loop
async def test_a_crowd_of_connections_waits_in_the_kernel_where_none_is_dropped(is_tls: bool) -> None:
    port = free_port()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if is_tls else None
    server = DoorServer(
        lambda: made(), listener=open_listener(f"tcp:127.0.0.1:{port}"), tls=tls, connections=door_connections()
    )

    def made() -> DoorConnection:
        return DoorConnection(server, asyncio.get_running_loop(), NoState(), Unsent(Share(1)))

    await server.start()
    (listening,) = (one for one in psutil.Process().net_connections("tcp") if one.laddr == ("127.0.0.1", port))
    with socket.socket(fileno=os.dup(listening.fd)) as listener:
        # Of a socket that listens, the kernel tells here how many may wait (struct tcp_info: 8 bytes, then words).
        most = struct.unpack_from("=I", listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 28)[0]
    server.close()

    assert most == min(BACKLOG, SOMAXCONN)


@in_loop
async def test_connections_of_ipv6_are_counted_by_the_first_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_server, "CONNECTIONS_MAX", 2)
    server = DoorServer(lambda: made(), listener=socket.socket(), tls=None, connections=door_connections())

    def made() -> DoorConnection:
        return DoorConnection(server, asyncio.get_running_loop(), NoState(), Unsent(Share(1)))

    wires = [Wire(address) for address in ("fd00::1", "192.0.2.1", "fd00:0:0:1::1", "fd00::2", "192.0.2.2", "fd00::3")]
    for wire in wires:
        made().connection_made(wire)

    assert [wire.is_aborted for wire in wires] == [True, False, False, False, False, False]
    assert server.connections.count("fd00::") == 2
    server.close()
    for wire in wires:
        wire.get_extra_info("socket").close()


@in_loop
async def test_tls_handshakes_of_ipv6_are_counted_by_the_first_64_bits() -> None:
    connections = door_connections()
    with (
        counted_listener(open_listener("tcp:[::1]:0"), connections) as listener,
        socket.create_connection(listener.getsockname()[:2]),
    ):
        accepted, _ = listener.accept()
        with accepted:
            assert (connections.count("::"), connections.handshakes) == (1, 1)
        assert connections.count("::") == 0


def knock(port: int, ca: Path) -> None:
    """A client that blocks: asyncio's hangs up without TLS's alert."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        client_tls(TlsFiles(ca=ca)).wrap_socket(sock, server_hostname="127.0.0.1").close()


@pytest.mark.parametrize("front", [http_front, grpc_front])
@in_loop
async def test_a_client_that_does_not_know_a_doors_ca_is_told_of_with_what_to_give_it(
    front: Any, tmp_path: Path
) -> None:
    made, other = Authority(tmp_path).make("front", says=SERVER), Authority(tmp_path, "other")
    secure = TlsFiles(cert=made.cert, key=made.key)
    at = (free_port(),) if front is http_front else ()
    with patch("farside.tls._rarely", Rarely()), patch("farside.tls._log") as log:
        async with front([MODEL], *at, secure=secure) as opened, asyncio.timeout(60):
            port = at[0] if at else int(opened[0].rpartition(":")[2])
            with pytest.raises(ssl.SSLCertVerificationError):
                await asyncio.to_thread(knock, port, other.cert)
            while not log.warning.called:
                await asyncio.sleep(0.01)

    assert log.warning.call_args.kwargs == {
        "why": "the client does not know who signed our certificate", "address": "127.0.0.1",
        "certificate": "commonName=front, issued by commonName=ca",
        "hint": f"give it the certificate of the CA of tls_cert {made.cert}",
    }  # fmt: skip


@in_loop
async def test_a_grpc_deadline_asks_for_less_than_the_slo() -> None:
    async with grpc_front([MODEL]) as (address, pool, executor):
        import grpc
        from tritonclient.grpc import service_pb2_grpc

        from farside.serve.grpc_message import service_pb2

        executor.is_hung = True
        tensor = {"name": "input", "shape": [1, 2], "datatype": "FP32"}
        request = service_pb2.ModelInferRequest(model_name="twice", inputs=[tensor], raw_input_contents=[bytes(8)])
        async with grpc.aio.insecure_channel(address) as channel:
            call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
            async with asyncio.timeout(60):
                while not pool.counts["twice"].cancelled and not pool.counts["twice"].dropped:
                    with pytest.raises(grpc.RpcError):  # on a busy machine it may be over before it was sent
                        await call(request, timeout=0.1)
                    await asyncio.sleep(0.005)


@st.composite
def spoilt(draw: st.DrawFn, sound: bytes) -> bytes:
    """A message with some bytes changed, cut out or put in."""
    data = bytearray(sound)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 4))] = draw(st.binary(max_size=6))
    return bytes(data)


def test_no_bytes_that_come_by_grpc_are_answered_but_by_the_protocols_errors() -> None:
    pytest.importorskip("grpc", reason="needs grpcio (requirements/serving.txt)")
    import grpc

    from farside.serve.grpc_message import service_pb2

    tensor = {"name": "input", "shape": [1, 2], "datatype": "FP32"}
    given_parameter = {"timeout": service_pb2.InferParameter(int64_param=9_000_000)}
    sound = service_pb2.ModelInferRequest(
        model_name="twice", id="7", inputs=[tensor], parameters=given_parameter, raw_input_contents=[bytes(8)]
    ).SerializeToString()
    wrong = {"INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}

    async def answered(call: Any, data: bytes) -> str:
        try:
            await call(data, timeout=60)
        except grpc.RpcError as error:
            return error.code().name if "\n" not in (error.details() or "") else "several lines"
        return "OK"

    tried: list[bytes] = []

    @settings(max_examples=200, deadline=None, database=None)
    @given(st.one_of(st.binary(max_size=80), spoilt(sound)))
    def collect(data: bytes) -> None:
        tried.append(data)

    @in_loop
    async def test() -> None:
        async with grpc_front([MODEL]) as (address, _, _), grpc.aio.insecure_channel(address) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            other = channel.unary_unary("/inference.GRPCInferenceService/ModelConfig")
            for data in tried:
                assert await answered(call, data) in {*wrong, "OK"}, data
                assert await answered(other, data) in {*wrong, "OK"}, data
            assert await answered(call, b"\xff") == "INVALID_ARGUMENT"
            assert await answered(call, sound) == "OK"

    collect()
    test()


def test_an_address_in_use_is_one_line() -> None:
    pytest.importorskip("grpc", reason="needs grpcio (requirements/serving.txt)")
    from farside.errors import ConfigError
    from farside.serve.grpc_door import open_grpc

    @in_loop
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            service = Service("1", {MODEL.name: MODEL}, {MODEL.name: 1.0}, pool_of([MODEL]))
            with pytest.raises(ConfigError, match="grpc_listen tcp:127"):
                open_grpc(service, f"127.0.0.1:{taken.getsockname()[1]}", None)

    test()


@in_loop
async def test_a_pem_file_that_is_none_is_named_by_grpc_too(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="needs grpcio (requirements/serving.txt)")
    from farside.errors import ConfigError
    from farside.serve.grpc_door import open_grpc

    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for path in (cert, key):
        path.write_text("junk")
        path.chmod(0o600)
    service = Service("1", {MODEL.name: MODEL}, {MODEL.name: 1.0}, pool_of([MODEL]))
    with pytest.raises(ConfigError, match=r"cert\.pem|key\.pem"):
        open_grpc(service, f"127.0.0.1:{free_port()}", TlsFiles(cert=cert, key=key))


@in_loop
async def test_a_connection_to_grpc_that_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("grpc", reason="needs grpcio (requirements/serving.txt)")
    from farside.serve.http2 import connection

    monkeypatch.setattr(connection, "OPEN_LIMIT_S", 0.2)
    async with grpc_front([MODEL]) as (address, _, _):
        reader, writer = await asyncio.open_connection(*address.split(":"))
        async with asyncio.timeout(9):  # less than the limit that users have
            while await reader.read(1000):
                pass
        writer.close()
