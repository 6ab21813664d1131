"""Who answers for a service principal: what it starts waits for keys of other people."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("alter table person add column owner text")
    op.execute("alter table person add foreign key (tenant, owner) references person")
