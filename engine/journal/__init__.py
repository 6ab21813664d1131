"""What a run did: its events, in order, and what they add up to."""
