"""Sequences, signs, builds and stores what an auditor will verify."""
