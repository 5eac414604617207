"""What a split of machines between sampling, verifying and training would do, simulated before anything is rented."""
