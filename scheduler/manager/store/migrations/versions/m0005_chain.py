"""Migration 5: a checksum of each entry that goes over the one before; entries of before have none."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Adds it to the entries, and that of the last one to the row that writers lock."""
    for table in ("log", "lead"):
        op.add_column(table, sa.Column("chain", sa.String(32), nullable=True))
