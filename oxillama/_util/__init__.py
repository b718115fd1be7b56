"""Utilities that know nothing of models: argument checks, fork handling, deferred signals, lazy imports."""
