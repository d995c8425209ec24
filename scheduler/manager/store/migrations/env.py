"""The environment of alembic's migrations: our tables on the connection that `migrate.py` hands over."""

from alembic import context

from farside.scheduler.manager.store.table import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
