"""What people see: the static report of a run."""
