"""The API and the console, both behind the same commands."""
