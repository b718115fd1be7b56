"""Scores of chat formats against recorded answers of many templates: ``python -m tests.chat.score FOLDER``.

One module per table. A table has `rows(case_file)`, which yields (label, ours, theirs, total, faults).
"""
