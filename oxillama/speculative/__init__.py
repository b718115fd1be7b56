"""Speculative decoding with a draft model: its selection, its synthesis, and drafts that run ahead in a thread."""
