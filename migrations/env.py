"""Alembic's entry: runs the revisions on the connection that governance.store.migrate hands over."""

from __future__ import annotations

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection, transactional_ddl=True, transaction_per_migration=True)
with context.begin_transaction():
    context.run_migrations()
