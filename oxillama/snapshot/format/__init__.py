"""Snapshot format: layout, codecs, reading and writing of files. Knows neither engine nor requests."""
