"""The tables of the store; a test compares them with those that alembic's migrations make."""

from sqlalchemy import BigInteger, Column, Float, Index, Integer, LargeBinary, MetaData, String, Table, Text

metadata = MetaData()

# Its places are given under a lock and never again, so that their order is the order in which entries became visible.
log = Table(
    "log",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at_s", Float(53), nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("cause", String(200), nullable=False),
    Column("version", Integer, nullable=False),
    Column("kind", String(60), nullable=False),
    Column("subject", String(100), nullable=False),
    Column("body", Text, nullable=False),
    # Over the entry and the chain of the one before it (chain.py); NULL: a version before this one wrote it.
    Column("chain", String(32), nullable=True),
)
Index("log_subject", log.c.subject, log.c.seq)

# At most one row: all that follows from the log up to an entry, so that nobody has to read what stands before.
image = Table(
    "image",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at_s", Float(53), nullable=False),
    Column("version", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

# One row: who leads, and the place of the last entry. Every writer locks it.
lead = Table(
    "lead",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("generation", BigInteger, nullable=False),
    Column("holder", String(200), nullable=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("last_at_s", Float(53), nullable=False),
    Column("chain", String(32), nullable=True),  # of the last entry
)

# One row: what keys of jobs are made of. In no entry of the log, and the same for all managers of the store.
secret = Table(
    "secret",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("value", LargeBinary, nullable=False),
)

# One row: which sessions' process leads, and a number that it changes once a second. A row of its own, so that writers
# of the log, who lock that of `lead`, need not wait for it.
pulse = Table(
    "pulse",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("holder", String(64), nullable=False),
    Column("beat", BigInteger, nullable=False),
)

# A row for each API that runs, or ran lately: what it writes again and again says that the nodes it names are heard.
presence = Table(
    "presence",
    metadata,
    Column("manager", String(100), primary_key=True),
    Column("beat", BigInteger, nullable=False),
    Column("at_s", Float(53), nullable=False),
    Column("nodes", Text, nullable=False),
)
