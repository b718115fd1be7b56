"""Every exception that oxillama raises on purpose.

::

    OxiLlamaError
    ├── ConfigError (ValueError)             an argument or configuration value is out of its range
    │   ├── ToolFormatError                  it isn't known how the model writes tool calls
    │   ├── MessageError (ChatTemplateError)     a message of a conversation has another form than is described
    │   └── TemplateVariableError (ChatTemplateError)  a chat template reads no variable of that name
    ├── LoadError                            a model can't be loaded
    │   ├── ModelNotFoundError (FileNotFoundError)   there is no such file
    │   ├── GGUFError (ValueError)           the file is damaged, hostile, or not GGUF
    │   ├── MissingKeyError (KeyError)       metadata lacks a key, or holds another type
    │   ├── MissingTensorError (KeyError)    a tensor is missing
    │   ├── LoraError (ValueError)           an adapter is damaged, or doesn't fit the model
    │   ├── PackedFileError (ValueError)     a file of packed weights is damaged, or of another model
    │   └── UnsupportedModelError            a well-formed file asks for something we don't have
    ├── GenerateError                        a request failed
    │   ├── ModelFileError (LoadError, OSError)  the model's file was changed, cut off, or can't be read any more
    │   ├── ThreadStartError (LoadError, RuntimeError)  the system allows no more threads
    │   ├── ContextOverflowError (ValueError)    prompt and output don't fit the context
    │   ├── QueueFullError (RuntimeError)        too many requests wait already
    │   ├── DeadlineError (TimeoutError)         a prompt of a batch had no token by its deadline
    │   └── EngineClosedError (RuntimeError)     the engine was closed
    ├── TokenizerError (ValueError)          vocabulary, text or token ids
    │   └── ChatTemplateError                a chat template is broken, raises, or misbehaves
    ├── GrammarError (ValueError)            a grammar or schema can't be compiled
    ├── ToolError                            a tool that a model called gave no result
    │   ├── ToolCallError (ValueError)           what the model wrote can't be read as a call
    │   ├── UnknownToolError (KeyError)          there is no tool of that name
    │   ├── ToolArgumentsError (ValueError)      the arguments don't fit the tool's schema
    │   └── ToolFailedError (RuntimeError)       the tool raised an exception
    ├── PickleError (TypeError)              an object can't be pickled or copied, or not opened from its pickle
    ├── QuantError (ValueError)              tensor formats, quantising and dequantising
    ├── KvCacheFullError (MemoryError)       more KV blocks or recurrent slots are needed than there are
    └── SnapshotError (ValueError)           a snapshot can't be written or resumed
        ├── SnapshotFileError (OSError)          its file can't be read or written
        ├── SnapshotFormatError                  it is no snapshot, or of a kind or version that is not known
        ├── SnapshotDamagedError                 bytes of it are not those that were written, or make no sense
        └── SnapshotMismatchError                it is of another model, adapter or configuration

Each message names the thing, its value and, where there is one, the remedy.
"""

__all__ = [
    "ChatTemplateError",
    "ConfigError",
    "ContextOverflowError",
    "DeadlineError",
    "EngineClosedError",
    "GGUFError",
    "GenerateError",
    "GrammarError",
    "KvCacheFullError",
    "LoadError",
    "LoraError",
    "MessageError",
    "MissingKeyError",
    "MissingTensorError",
    "ModelFileError",
    "ModelNotFoundError",
    "OxiLlamaError",
    "PackedFileError",
    "PickleError",
    "QuantError",
    "QueueFullError",
    "SnapshotDamagedError",
    "SnapshotError",
    "SnapshotFileError",
    "SnapshotFormatError",
    "SnapshotMismatchError",
    "TemplateVariableError",
    "ThreadStartError",
    "TokenizerError",
    "ToolArgumentsError",
    "ToolCallError",
    "ToolError",
    "ToolFailedError",
    "ToolFormatError",
    "UnknownToolError",
    "UnsupportedModelError",
]


class OxiLlamaError(Exception):
    """Base of every exception that oxillama raises on purpose."""

    # KeyError and OSError children would show their argument in quotes or split it up.
    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ConfigError(OxiLlamaError, ValueError):
    """An argument or configuration value is out of its range; the message names all three."""


class ToolFormatError(ConfigError):
    """A format of tool calls isn't known, neither from the template nor by the name given."""


class LoadError(OxiLlamaError):
    """A model can't be loaded."""


class ModelNotFoundError(LoadError, FileNotFoundError):
    """A file isn't there, or can't be read."""


class GGUFError(LoadError, ValueError):
    """The file is damaged, hostile, or not GGUF; the message names the place."""


class MissingKeyError(LoadError, KeyError):
    """Metadata lacks a key, or holds a value of another type or range under it."""


class MissingTensorError(LoadError, KeyError):
    """A tensor that the architecture needs is missing."""


class LoraError(LoadError, ValueError):
    """An adapter is damaged or hostile, or doesn't fit the model; the message names the tensor or setting."""


class PackedFileError(LoadError, ValueError):
    """A file of packed weights is damaged, hostile, of another model, or of another layout of panels."""


class UnsupportedModelError(LoadError):
    """A well-formed file asks for an architecture, tensor format or tokenizer that we don't have."""


class GenerateError(OxiLlamaError):
    """A request failed."""


class ModelFileError(GenerateError, LoadError, OSError):
    """The model's file was changed or cut off while the model is in use, or can't be read any more."""


class ThreadStartError(GenerateError, LoadError, RuntimeError):
    """A thread that the engine needs can't be started: the system, or the process's container, allows no more."""


class ContextOverflowError(GenerateError, ValueError):
    """Prompt and requested output don't fit the context.

    n_tokens: tokens of the prompt, or how many it has at least; None where they weren't counted.
    """

    def __init__(self, message: str = "", n_tokens: int | None = None) -> None:
        super().__init__(message)
        self.n_tokens = n_tokens


class QueueFullError(GenerateError, RuntimeError):
    """Too many requests wait already; none of those that were sent together is queued."""


class DeadlineError(GenerateError, TimeoutError):
    """A prompt of a batch had no token by its deadline; with at least one it has a completion, cut short."""


class EngineClosedError(GenerateError, RuntimeError):
    """The engine was used after ``close()``."""


class TokenizerError(OxiLlamaError, ValueError):
    """Vocabulary, text or token ids are not usable."""


class ChatTemplateError(TokenizerError):
    """A chat template is broken, raises, takes too long or tries to leave its sandbox."""


class MessageError(ConfigError, ChatTemplateError):
    """A message of a conversation has another form than is described; the message names the place in it."""


class TemplateVariableError(ConfigError, ChatTemplateError):
    """A chat template reads no variable of that name; the message lists those that it reads."""


class GrammarError(OxiLlamaError, ValueError):
    """A grammar or schema can't be compiled."""


class ToolError(OxiLlamaError):
    """A tool that a model called gave no result. The message can be shown to the model."""


class ToolCallError(ToolError, ValueError):
    """A call that the model wrote can't be read."""


class UnknownToolError(ToolError, KeyError):
    """The model called a tool that there isn't."""


class ToolArgumentsError(ToolError, ValueError):
    """The arguments of a call don't fit the tool's schema."""


class ToolFailedError(ToolError, RuntimeError):
    """The tool raised an exception, which is this one's cause, or returned what JSON can't hold."""


class PickleError(OxiLlamaError, TypeError):
    """An object can't be pickled or copied, or what its pickle names can't be opened; the message has the remedy."""


class QuantError(OxiLlamaError, ValueError):
    """A tensor format is unknown, or data don't fit it."""


class KvCacheFullError(OxiLlamaError, MemoryError):
    """More KV blocks or recurrent slots are needed than there are."""


class SnapshotError(OxiLlamaError, ValueError):
    """A snapshot can't be written or resumed."""


class SnapshotFileError(SnapshotError, OSError):
    """The file of a snapshot, or one that it needs, can't be read or written."""


class SnapshotFormatError(SnapshotError):
    """Bytes are no snapshot, or one of a kind or version that is not known here."""


class SnapshotDamagedError(SnapshotError):
    """A snapshot holds other bytes than were written, or such as make no sense; the message names the place."""


class SnapshotMismatchError(SnapshotError):
    """A snapshot of another model, adapter or configuration; the message names what differs."""
