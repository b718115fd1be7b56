"""Fuzzing that sees which branches of the package an input takes, and looks for inputs that take others.

`python -m tests.fuzz --help` tells how to run it; CONTRIBUTING.md when. What is given to the package and what is held
to be right of it is in `targets`; the rest knows nothing of oxillama. Python's sources are rewritten as they are
imported (`coverage`), so that nothing needs to be installed and every version of Python will do.
"""
