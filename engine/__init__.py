"""Decides: pure rules of runs, effects and proofs, without I/O, clock or chance."""
