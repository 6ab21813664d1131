"""The schema's history: one hand-written Alembic revision per change, each working beside the release before it."""
