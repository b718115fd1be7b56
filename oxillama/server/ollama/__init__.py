"""Ollama's API: its requests as those of the other dialects, its answers, and what it tells of models."""
