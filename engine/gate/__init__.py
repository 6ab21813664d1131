"""May this effect happen: action, verdict, approval, permit, receipt."""
