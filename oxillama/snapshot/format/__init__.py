"""Snapshot format: layout, codecs, reading and writing of files. Imports neither engine nor requests."""
