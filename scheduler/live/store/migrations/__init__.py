"""How older stores become what `table.py` says; alembic runs these."""
