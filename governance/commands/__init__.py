"""What people may order; authority is checked here and nowhere else, for every entry alike."""
