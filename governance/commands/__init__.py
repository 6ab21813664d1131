"""What people may order; authority is checked here and nowhere else."""
