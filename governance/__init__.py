"""Touches the world: stores, asks, shows, calls and seals what the engine decided."""
