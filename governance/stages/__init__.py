"""What the queue drives: one input, one brain, at most one outside call, one result commit."""
