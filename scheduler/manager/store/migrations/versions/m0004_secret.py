"""Migration 4: the secret that keys of jobs are made of."""

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Makes the table, and its one row."""
    made = op.create_table(
        "secret",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.bulk_insert(made, [{"id": 1, "value": secrets.token_bytes(32)}])
