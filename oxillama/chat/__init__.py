"""Chat: messages to the prompt that a model was trained to continue."""

from oxillama.chat.template import ChatTemplate

__all__ = ["ChatTemplate"]
