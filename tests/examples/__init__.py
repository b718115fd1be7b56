"""Tests of `oxillama.examples`."""
