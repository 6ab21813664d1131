"""The hands that change outside systems, and only with a permit."""
