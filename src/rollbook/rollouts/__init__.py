"""Solving: engines and the turn loop that make traces."""
