"""Migration 1: the log, and the row that every writer locks."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Makes both tables, and the one row."""
    op.create_table(
        "log",
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at_s", sa.Float(53), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("cause", sa.String(200), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(60), nullable=False),
        sa.Column("subject", sa.String(100), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_index("log_subject", "log", ["subject", "seq"])
    lead = op.create_table(
        "lead",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.String(200), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("last_at_s", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.bulk_insert(lead, [{"id": 1, "generation": 0, "holder": "", "last_seq": 0, "last_at_s": 0.0}])
