"""The machine: one input, one brain, at most one call that changes the outside, one result commit; no stage imports a stage."""
