"""What runs inside the guests: transactions, ranks, the worker's loop, and the cache's client."""

import io
import json
import random
import shutil
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.apps.mix import SYS, packed, script
from benchmarks.apps.page_rank import DAMPING, Graph, PageRank
from benchmarks.apps.transactions import DISTRICTS, LINES_SPAN, SPAN, Shop, Size
from benchmarks.apps.worker import run, serve

SMALL = Size(warehouses=2, customers=5, items=50, orders=25)


@pytest.fixture
def shop() -> Iterator[Shop]:
    made = Shop(SMALL, random.Random(1))
    with closing(made.database):
        yield made


def one(shop: Shop, query: str) -> int:
    (value,) = shop.database.execute(query).fetchone()
    return int(value)


# --- the worker's loop


def test_a_run_counts_what_was_operated_and_what_failed() -> None:
    said = iter([True, False, True])

    told = run(lambda: next(said), seconds=0.0)
    again = run(lambda: next(said), seconds=0.0)

    assert (told["operations"], told["failed"]) == (1, 0)
    assert (again["operations"], again["failed"]) == (1, 1)
    assert told["p50_us"] == told["p99_us"] == told["max_us"] > 0


def test_a_worker_answers_each_run_until_its_input_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("run 0\nrun 0\ncount 7\n"))

    serve(lambda: True)

    first, *rest = capsys.readouterr().out.splitlines()
    assert first == "ready"
    assert [json.loads(line)["operations"] for line in rest] == [1, 1, 7]


# --- transactions


def test_a_new_order_takes_its_lines_from_stock(shop: Shop) -> None:
    before = one(shop, "SELECT count(*) FROM order_line")

    shop.new_order()

    newest = one(shop, "SELECT max(o) FROM orders WHERE carrier IS NULL")
    lines = one(shop, f"SELECT count(*) FROM order_line WHERE l / {LINES_SPAN} = {newest}")
    assert one(shop, "SELECT count(*) FROM order_line") - before == lines
    assert one(shop, f"SELECT lines FROM orders WHERE o = {newest}") == lines
    assert one(shop, "SELECT sum(orders) FROM stock") == lines


def test_a_districts_next_order_is_one_above_its_newest(shop: Shop) -> None:
    for _ in range(200):
        shop.transact()

    for district in range(SMALL.warehouses * DISTRICTS):
        newest = one(shop, f"SELECT max(o) % {SPAN} FROM orders WHERE o / {SPAN} = {district}")
        assert one(shop, f"SELECT next_order FROM district WHERE d = {district}") == newest + 1


def test_what_customers_pay_is_what_warehouses_and_districts_take(shop: Shop) -> None:
    for _ in range(50):
        shop.payment()

    paid = one(shop, "SELECT sum(amount) FROM history")
    assert paid == one(shop, "SELECT sum(ytd) FROM warehouse") == one(shop, "SELECT sum(ytd) FROM district")
    assert paid == -one(shop, "SELECT sum(balance) FROM customer")


def test_a_delivery_gives_an_order_of_each_district_a_carrier(shop: Shop) -> None:
    shop.database.execute("UPDATE orders SET carrier = NULL")

    shop.delivery()

    assert one(shop, "SELECT count(*) FROM orders WHERE carrier IS NOT NULL") == DISTRICTS


def test_every_kind_of_transaction_ends_outside_of_one(shop: Shop) -> None:
    for transact in (shop.new_order, shop.payment, shop.order_status, shop.delivery, shop.stock_level):
        assert transact()
        assert not shop.database.in_transaction


# --- ranks


def test_ranks_are_those_of_the_plain_formula() -> None:
    graph = Graph(50, 400, seed=3)
    rank = PageRank(graph)
    out_degree = np.maximum(np.bincount(graph.source, minlength=50), 1)
    want = np.full(50, 1 / 50)
    for _ in range(3):
        want = (1 - DAMPING) / 50 + DAMPING * np.bincount(
            graph.target, weights=want[graph.source] / out_degree[graph.source], minlength=50
        )

    while rank.passes < 3:
        rank.step()

    assert rank.ranks == pytest.approx(want)


def test_few_vertices_have_most_of_the_edges() -> None:
    graph = Graph(10_000, 200_000)

    degrees = np.sort(np.bincount(graph.target, minlength=10_000))[::-1]

    assert degrees[:1000].sum() > 0.4 * 200_000
    assert np.all(np.diff(graph.target) >= 0)


# --- the cache's client


class _Cache(socketserver.StreamRequestHandler):
    """As much of memcached as the client speaks; what is stored is the server's."""

    def handle(self) -> None:
        held = self.server.held  # type: ignore[attr-defined]
        for line in self.rfile:
            match line.split():
                case [b"set", key, _, _, length, *more]:
                    held[key] = self.rfile.read(int(length) + 2)[:-2]
                    if not more:
                        self.wfile.write(b"STORED\r\n")
                case [b"get", key]:
                    value = held.get(key)
                    found = b"" if value is None else b"VALUE %s 0 %d\r\n%s\r\n" % (key, len(value), value)
                    self.wfile.write(found + b"END\r\n")
                case _:
                    self.wfile.write(b"VERSION 0\r\n")


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Cache)
        self.held: dict[bytes, bytes] = {}


@pytest.fixture
def cache() -> Iterator[_Server]:
    with _Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("not installed: cc")
    program = tmp_path_factory.mktemp("client") / "cache_load"
    source = Path(__file__).parents[2] / "benchmarks/apps/cache_load.c"
    subprocess.run(["cc", "-std=gnu11", "-O1", "-Wall", "-Werror", "-pthread", "-o", program, source], check=True)
    return program


def played(client: Path, cache: _Server, folder: Path, words: str, *options: str) -> list[str]:
    made = script(replace(SYS, key_count=40), random.Random(1), request_count=200)
    (folder / "script").write_bytes(packed(made))
    command = [str(client), str(cache.server_address[1]), str(folder / "script"), "3", *options]
    done = subprocess.run(command, input=words, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


def test_the_client_stores_every_key_with_the_scripts_sizes(client: Path, cache: _Server, tmp_path: Path) -> None:
    made = script(replace(SYS, key_count=40), random.Random(1), request_count=200)

    assert played(client, cache, tmp_path, "") == ["ready"]

    sizes = {(len(key), len(value)) for key, value in cache.held.items()}
    assert len(cache.held) == 40
    assert sizes == set(zip(made.key_bytes, made.value_bytes, strict=True))


def test_the_client_tells_what_it_played(client: Path, cache: _Server, tmp_path: Path) -> None:
    _, line = played(client, cache, tmp_path, "run 200\n")

    told = json.loads(line)
    assert told["operations"] > 3
    assert told["seconds"] >= 0.2
    assert 0 < told["p50_us"] <= told["p99_us"] <= told["max_us"]
    assert told["failed"] == 0


def test_the_client_plays_as_many_requests_as_it_is_told(client: Path, cache: _Server, tmp_path: Path) -> None:
    _, few, many = played(client, cache, tmp_path, "count 1\ncount 250\n")

    assert json.loads(few)["operations"] == 3  # one of each connection
    assert json.loads(many)["operations"] == 250


def test_an_empty_cache_is_stored_key_by_key_when_told_to(client: Path, cache: _Server, tmp_path: Path) -> None:
    _, missed, stored = played(client, cache, tmp_path, "run 0\nstore\n", "empty")

    assert json.loads(missed)["operations"] == 3
    assert json.loads(stored)["operations"] == 40
    assert len(cache.held) == 40
