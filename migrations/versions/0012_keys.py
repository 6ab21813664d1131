"""Rotation of signing keys: how long a retired log key goes on signing beside its successor, and which are not believed any more."""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5s'")
    op.execute(
        "alter table signing_key add column signs_until timestamptz, add column compromised boolean not null default false"
    )
    op.execute("grant update (signs_until, compromised) on signing_key to tk_app")
