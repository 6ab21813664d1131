"""What a run does next: definitions, expressions and their interpretation."""
