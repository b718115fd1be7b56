"""Documentation site, built from the READMEs, the docstrings and the recorded measurements: `python -m tests.site`."""
