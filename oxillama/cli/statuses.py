"""Statuses with which a command ends."""

from oxillama.errors import ConfigError

__all__ = ["FailedCheckError"]


class FailedCheckError(ConfigError):
    """A check that the command was for found something wrong. status: of the process."""

    status = 1
