"""What can be proved: entries, chains, tree, notes, bundles and their verification."""
