"""Bring the schema to head, once, under a lock; give the application's login its role."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy.engine import make_url

from engine.errors import OperatorError

lock_seconds_max = 4.0
_lock = 0x74776F6B  # "twok": one migration at a time per database


def driver_url(url: str) -> str:
    """The same database through psycopg 3, whatever the scheme that was typed."""
    parsed = make_url(url)
    return parsed.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)


def _config() -> Config:
    here = Path(__file__).resolve().parents[2] / "migrations"
    if not here.is_dir():
        raise OperatorError("migrations/ is not installed beside the packages", next_step="reinstall the wheel")
    config = Config()
    config.set_main_option("script_location", str(here))
    return config


def head() -> str:
    """The revision this release was built for."""
    return str(ScriptDirectory.from_config(_config()).get_current_head())


def upgrade(owner_url: str, app_role: str) -> str:
    """Run what is missing as the owner; `app_role` is the login of the application. Returns the revision."""
    engine = sa.create_engine(driver_url(owner_url), poolclass=sa.NullPool)
    config = _config()
    try:
        with engine.connect() as connection:
            connection.execute(sa.text("select pg_advisory_lock(:n)"), {"n": _lock})
            # A table that somebody reads for long must not stop everybody who queues up behind us for longer than this.
            connection.execute(sa.text(f"set lock_timeout = {int(lock_seconds_max * 1000)}"))
            connection.commit()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            connection.execute(sa.text(f"grant tk_app to {engine.dialect.identifier_preparer.quote(app_role)}"))
            connection.commit()
            revision = connection.execute(sa.text("select version_num from alembic_version")).scalar_one()
            connection.execute(sa.text("grant select on alembic_version to tk_app"))
            # The end of the session would release it too, but some time after we have said that we are done.
            connection.execute(sa.text("select pg_advisory_unlock(:n)"), {"n": _lock})
            connection.commit()
    except sa.exc.OperationalError as error:
        if getattr(error.orig, "sqlstate", "") == "55P03":
            raise OperatorError(
                f"a table was in use for longer than {lock_seconds_max:g} s, so this revision was not begun",
                code="busy",
                next_step="run `twokeys migrate` again; a long transaction that stands in the way is in pg_stat_activity",
            ) from None
        raise OperatorError(
            f"cannot reach the database: {str(error.orig).strip()}", field="TWOKEYS_MIGRATE_URL"
        ) from None
    finally:
        engine.dispose()
    return str(revision)
