"""Exercises of notebook 05: traps and their repair."""
