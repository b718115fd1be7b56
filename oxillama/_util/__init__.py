"""Utilities independent of models: argument checks, fork handling, deferred signals, lazy imports."""
