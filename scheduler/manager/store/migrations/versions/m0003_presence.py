"""Migration 3: the managers, and the nodes that are connected to each."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Makes the table."""
    op.create_table(
        "presence",
        sa.Column("manager", sa.String(length=100), nullable=False),
        sa.Column("beat", sa.BigInteger(), nullable=False),
        sa.Column("at_s", sa.Float(53), nullable=False),
        sa.Column("nodes", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("manager"),
    )
