"""Faults of the system under what the package does with files, processes and signals.

`python -m tests.faults` runs the whole matrix, in minutes, and prints it; the tests here run the quick part of it.
"""
