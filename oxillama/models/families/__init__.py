"""Families of architectures: each file says what its members are made of and registers them."""

__all__: list[str] = []
