"""Order entry over SQLite in memory, in VoltDB's place: TPC-C's five transactions and their mix. [infiniswap §2.7.3.1]

    python3 -m benchmarks.apps.transactions

It is like TPC-C and is not TPC-C: one client, no think time, fewer customers and items a warehouse, no check of the
result. CPU-bound where all of it fits in memory.
"""

import random
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.apps.worker import serve

WAREHOUSES = 8
DISTRICTS = 10
CUSTOMERS = 300  # a district; TPC-C has 3000
ITEMS = 5_000  # TPC-C has 100,000
ORDERS = 60  # a district, at the start
LINES = 10  # an order
# TPC-C §5.2.3: at least these shares; new orders are the rest.
SHARES = (("payment", 43), ("order_status", 4), ("delivery", 4), ("stock_level", 4), ("new_order", 45))
SCHEMA = """
CREATE TABLE warehouse (w INTEGER PRIMARY KEY, ytd INTEGER, filler TEXT);
CREATE TABLE district (d INTEGER PRIMARY KEY, next_order INTEGER, ytd INTEGER, filler TEXT);
CREATE TABLE customer (c INTEGER PRIMARY KEY, balance INTEGER, payments INTEGER, data TEXT);
CREATE TABLE item (i INTEGER PRIMARY KEY, price INTEGER, name TEXT);
CREATE TABLE stock (s INTEGER PRIMARY KEY, quantity INTEGER, ytd INTEGER, orders INTEGER, data TEXT);
CREATE TABLE orders (o INTEGER PRIMARY KEY, customer INTEGER, lines INTEGER, carrier INTEGER);
CREATE TABLE order_line (l INTEGER PRIMARY KEY, item INTEGER, quantity INTEGER, amount INTEGER, info TEXT);
CREATE TABLE history (h INTEGER PRIMARY KEY, customer INTEGER, amount INTEGER);
CREATE INDEX orders_by_customer ON orders (customer, o);
"""
# In memory, behind SQLite's own cache of 2 MB. With ":memory:" one commit in sixty goes through every page there is,
# which under a limit takes seconds: all that a window would show is how many of these fell into it.
DATABASE = "file:shop?vfs=memdb"
COUNT = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?) INSERT INTO "
# Order o of a district is row district * SPAN + o, its lines from row * LINES_SPAN on.
SPAN, LINES_SPAN = 10_000_000, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is kept; the default is some 50 MiB."""

    warehouses: int = WAREHOUSES
    customers: int = CUSTOMERS
    items: int = ITEMS
    orders: int = ORDERS


class Shop:
    """A database and the transactions on it; every random choice comes from ``rng``."""

    def __init__(self, size: Size, rng: random.Random) -> None:
        self.size = size
        self._rng = rng
        self.database = sqlite3.connect(DATABASE, uri=True, isolation_level=None)
        self.database.execute("PRAGMA journal_mode = MEMORY")
        self.database.executescript(SCHEMA)
        self._fill()
        self._kinds: list[Callable[[], bool]] = [getattr(self, name) for name, _ in SHARES]
        self._weights = [share for _, share in SHARES]

    def transact(self) -> bool:
        """One transaction of the mix, committed or (1 % of new orders, as TPC-C wants it) rolled back."""
        return self._rng.choices(self._kinds, self._weights)[0]()

    def new_order(self) -> bool:
        """An order of 5 to 15 lines, which takes its items from stock."""
        rng, run = self._rng, self.database.execute
        district, customer = self._district(), self._customer()
        run("BEGIN")
        (number,) = run("SELECT next_order FROM district WHERE d = ?", (district,)).fetchone()
        run("UPDATE district SET next_order = next_order + 1 WHERE d = ?", (district,))
        order = district * SPAN + number
        lines = rng.randint(5, 15)
        run("INSERT INTO orders VALUES (?, ?, ?, NULL)", (order, customer, lines))
        for line in range(lines):
            item = rng.randrange(self.size.items)
            stock = (district // DISTRICTS) * self.size.items + item
            (price,) = run("SELECT price FROM item WHERE i = ?", (item,)).fetchone()
            quantity, info = run("SELECT quantity, substr(data, 1, 24) FROM stock WHERE s = ?", (stock,)).fetchone()
            wanted = rng.randint(1, 10)
            left = quantity - wanted if quantity >= wanted + 10 else quantity - wanted + 91
            run("UPDATE stock SET quantity = ?, ytd = ytd + ?, orders = orders + 1 WHERE s = ?", (left, wanted, stock))
            row = (order * LINES_SPAN + line, item, wanted, wanted * price, info)
            run("INSERT INTO order_line VALUES (?, ?, ?, ?, ?)", row)
        run("ROLLBACK" if rng.random() < 0.01 else "COMMIT")
        return True

    def payment(self) -> bool:
        """A customer pays."""
        run, amount = self.database.execute, self._rng.randint(100, 500_000)
        district, customer = self._district(), self._customer()
        run("BEGIN")
        run("UPDATE warehouse SET ytd = ytd + ? WHERE w = ?", (amount, district // DISTRICTS))
        run("UPDATE district SET ytd = ytd + ? WHERE d = ?", (amount, district))
        run("UPDATE customer SET balance = balance - ?, payments = payments + 1 WHERE c = ?", (amount, customer))
        run("INSERT INTO history (customer, amount) VALUES (?, ?)", (customer, amount))
        run("COMMIT")
        return True

    def order_status(self) -> bool:
        """The lines of a customer's newest order."""
        run, customer = self.database.execute, self._customer()
        run("SELECT balance, data FROM customer WHERE c = ?", (customer,)).fetchone()
        newest = run("SELECT o FROM orders WHERE customer = ? ORDER BY o DESC LIMIT 1", (customer,)).fetchone()
        if newest is not None:
            self._lines(newest[0])
        return True

    def delivery(self) -> bool:
        """The oldest order of each district of a warehouse that has no carrier yet gets one, and is paid for."""
        run, warehouse = self.database.execute, self._rng.randrange(self.size.warehouses)
        run("BEGIN")
        for district in range(warehouse * DISTRICTS, (warehouse + 1) * DISTRICTS):
            (newest,) = run("SELECT next_order FROM district WHERE d = ?", (district,)).fetchone()
            number = self._rng.randrange(max(newest - ORDERS, 0), newest)
            row = run("SELECT o, customer FROM orders WHERE o = ?", (district * SPAN + number,)).fetchone()
            if row is not None:
                amount = sum(line[2] for line in self._lines(row[0]))
                run("UPDATE orders SET carrier = ? WHERE o = ?", (self._rng.randint(1, 10), row[0]))
                run("UPDATE customer SET balance = balance + ? WHERE c = ?", (amount, row[1]))
        run("COMMIT")
        return True

    def stock_level(self) -> bool:
        """How many items of a district's last 20 orders are short."""
        run, district = self.database.execute, self._district()
        (newest,) = run("SELECT next_order FROM district WHERE d = ?", (district,)).fetchone()
        first = (district * SPAN + max(newest - 20, 0)) * LINES_SPAN
        run(
            "SELECT count(DISTINCT s) FROM order_line JOIN stock ON s = ? + item "
            "WHERE l >= ? AND l < ? AND stock.quantity < 20",
            ((district // DISTRICTS) * self.size.items, first, (district * SPAN + newest) * LINES_SPAN),
        ).fetchone()
        return True

    def _lines(self, order: int) -> list[tuple[int, int, int]]:
        first = order * LINES_SPAN
        query = "SELECT item, quantity, amount FROM order_line WHERE l >= ? AND l < ?"
        return self.database.execute(query, (first, first + LINES_SPAN)).fetchall()

    def _district(self) -> int:
        return self._rng.randrange(self.size.warehouses * DISTRICTS)

    def _customer(self) -> int:
        return self._rng.randrange(self.size.warehouses * DISTRICTS * self.size.customers)

    def _fill(self) -> None:
        # By SQLite itself: a row by Python would take ten times as long, emulated.
        size, run = self.size, self.database.execute
        districts = size.warehouses * DISTRICTS
        run("BEGIN")
        run(COUNT + "warehouse SELECT i, 0, hex(zeroblob(40)) FROM n", (size.warehouses,))
        run(COUNT + "district SELECT i, ?, 0, hex(zeroblob(40)) FROM n", (districts, size.orders))
        run(COUNT + "customer SELECT i, 0, 0, hex(randomblob(240)) FROM n", (districts * size.customers,))
        run(COUNT + "item SELECT i, 100 + i * 7919 % 9900, hex(randomblob(12)) FROM n", (size.items,))
        run(
            COUNT + "stock SELECT i, 10 + i * 7919 % 91, 0, 0, hex(randomblob(145)) FROM n",
            (size.warehouses * size.items,),
        )
        orders, per = districts * size.orders, size.orders
        run(
            COUNT + f"orders SELECT (i / {per}) * {SPAN} + i % {per}, i * 7919 % ?, {LINES}, i % 10 FROM n",
            (orders, districts * size.customers),
        )
        run(
            COUNT + f"order_line SELECT ((i / {LINES} / {per}) * {SPAN} + i / {LINES} % {per}) * {LINES_SPAN} "
            f"+ i % {LINES}, i * 7919 % ?, 5, 500, hex(randomblob(12)) FROM n",
            (orders * LINES, size.items),
        )
        run("COMMIT")


def main() -> None:
    """Until the end of standard input."""
    serve(Shop(Size(), random.Random(1)).transact)


if __name__ == "__main__":
    main()
