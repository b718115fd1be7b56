"""Tests of `oxillama._util`."""
