"""Who may start what, when, and how many."""
