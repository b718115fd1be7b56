"""Description of a GGUF file as text."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from oxillama.chat.format import ChatFormat
from oxillama.errors import ChatTemplateError, MissingKeyError
from oxillama.gguf.arrays import GGUFArray
from oxillama.gguf.metadata import Metadata
from oxillama.gguf.reader import GGUFFile
from oxillama.gguf.values import printable

__all__ = ["describe", "kv_bytes_per_token"]

T = TypeVar("T")

_UNKNOWN = "unknown"
_TEMPLATE_LINES = 3
_WIDTH = 100
_SAMPLING = "general.sampling."
_MAX_LAYERS = 10_000  # a longer array is not one of values for each layer
_SPECIALS = {
    "BOS": "bos", "EOS": "eos", "EOT": "eot", "EOM": "eom", "UNK": "unknown", "SEP": "seperator", "PAD": "padding",
    "CLS": "cls", "MASK": "mask", "FIM-PRE": "fim_pre", "FIM-SUF": "fim_suf", "FIM-MID": "fim_mid",
}  # fmt: skip


def describe(file: GGUFFile, *, context_size: int | None = None, kept: tuple[int, int] | None = None) -> str:
    """Architecture, sizes, tensor types, tokenizer, template, sampling defaults and a memory estimate, a line each.

    The KV cache is estimated for ``context_size`` tokens (by default 4096 and the context the model was trained for) in
    f16. ``kept``: memory of a request, as bytes for each token and bytes in all; without it, metadata are taken to be
    those of a transformer whose layers keep every token. Missing keys are shown as "unknown"; no well-formed file makes
    this fail.
    """
    lines = [*_file_lines(file), *_model_lines(file), *_tensor_lines(file), *_tokenizer_lines(file.metadata)]
    lines += [
        *_template_lines(file.metadata),
        *_sampling_lines(file.metadata),
        *_memory_lines(file, context_size, kept),
    ]
    return "\n".join(f"{printable(name):<18}{printable(text)}".rstrip() for name, text in lines)


def kv_bytes_per_token(metadata: Metadata, bytes_per_value: float = 2.0) -> float | None:
    """Bytes of KV cache of a token over all layers; None if the metadata lack a value.

    ``sum over layers of n_kv_heads * (key_length + value_length)`` values.
    """
    width = _int(metadata, "embedding_length")
    heads = _per_layer(metadata, "attention.head_count")
    kv_heads = _per_layer(metadata, "attention.head_count_kv") or heads
    layers = _int(metadata, "block_count")
    if not kv_heads or not heads or max(heads) < 1 or layers is None:
        return None
    default = None if width is None else width // max(heads)
    key = _int(metadata, "attention.key_length") or default
    value = _int(metadata, "attention.value_length") or default
    if key is None or value is None:
        return None
    total = kv_heads[0] * layers if len(kv_heads) == 1 else sum(kv_heads)
    return total * (key + value) * bytes_per_value


def _file_lines(file: GGUFFile) -> Iterator[tuple[str, str]]:
    yield "file", str(file.path) if file.path is not None else "in memory"
    parts = f", {len(file.shards)} parts" if len(file.shards) > 1 else ""
    yield "format", f"GGUF version {file.version}, alignment {file.alignment}{parts}"
    yield "size", _bytes(file.n_bytes)


def _model_lines(file: GGUFFile) -> Iterator[tuple[str, str]]:
    m = file.metadata
    yield "architecture", _try(lambda: m.arch) or _UNKNOWN
    yield "name", _first_line(_try(lambda: m.get_str("general.name")) or _UNKNOWN)
    n_values = sum(t.n_values for t in file.tensors.values())
    yield "parameters", f"{n_values:,}" + (f" ({_short(n_values)})" if n_values >= 1000 else "")
    yield "layers", _number(_int(m, "block_count"))
    yield "width", _number(_int(m, "embedding_length"))
    yield "feed forward", _range(_per_layer(m, "feed_forward_length"), none="none")
    yield from _mixer_lines(m)
    experts = _int(m, "expert_count")
    if experts:
        shared = _int(m, "expert_shared_count")
        beside = f", {shared} shared" if shared else ""
        yield "experts", f"{experts}, {_number(_int(m, 'expert_used_count'))} used{beside}"
    yield "context", _number(_int(m, "context_length"))


def _mixer_lines(m: Metadata) -> Iterator[tuple[str, str]]:
    """Lines about the token mixers: attention, state space and convolution."""
    heads = _per_layer(m, "attention.head_count")
    if heads and not max(heads):
        yield "heads", "none"
    else:
        yield (
            "heads",
            f"{_range(heads)}, {_range(_per_layer(m, 'attention.head_count_kv') or heads)} for keys and values",
        )
    if rank := _int(m, "attention.kv_lora_rank"):
        yield "  latent", f"{rank:,} values, from which keys and values of all heads are unfolded"
    if window := _int(m, "attention.sliding_window"):
        yield "  window", f"{window:,} tokens"
    if width := _int(m, "ssm.inner_size"):
        linear = any(key.endswith((".recurrent_layers", ".full_attention_interval")) for key in m)
        yield (
            "linear attention" if linear else "state space",
            f"{width:,} channels of {_number(_int(m, 'ssm.state_size'))} values",
        )
    if taps := _int(m, "ssm.conv_kernel") or _int(m, "shortconv.l_cache"):
        yield "convolution", f"{taps:,} tokens"


def _tensor_lines(file: GGUFFile) -> Iterator[tuple[str, str]]:
    yield "tensors", f"{len(file.tensors)}"
    counts: dict[str, tuple[int, int]] = {}
    for t in file.tensors.values():
        n, size = counts.get(t.type, (0, 0))
        counts[t.type] = (n + 1, size + t.nbytes)
    for name, (n, size) in sorted(counts.items(), key=lambda item: -item[1][1]):
        yield f"  {name}", f"{n:>5}  {_bytes(size)}"


def _tokenizer_lines(m: Metadata) -> Iterator[tuple[str, str]]:
    model = _try(lambda: m.get_str("tokenizer.ggml.model")) or _UNKNOWN
    pre = _try(lambda: m.get_str("tokenizer.ggml.pre"))
    tokens = _try(lambda: m.get_array("tokenizer.ggml.tokens", str))
    size = f"{len(tokens):,}" if tokens is not None else _number(_int(m, "vocab_size"))
    yield "tokenizer", f"{model}{f' ({pre})' if pre else ''}, {size} tokens"
    found = []
    for name, key in _SPECIALS.items():
        token = _token_id(m, f"tokenizer.ggml.{key}_token_id")
        if token is not None:
            found.append(f"{name} {token}{_token_text(tokens, token)}")
    if found:
        yield "  special", ", ".join(found)


def _template_lines(m: Metadata) -> Iterator[tuple[str, str]]:
    template = _try(lambda: m.get_str("tokenizer.chat_template"))
    if template is None:
        yield "chat template", "none"
        return
    lines = template.splitlines()
    yield "chat template", f"{len(template):,} characters, {len(lines):,} lines"
    for line in lines[:_TEMPLATE_LINES]:
        yield "", f"| {_cut(line)}"
    if len(lines) > _TEMPLATE_LINES:
        yield "", "| …"
    yield "  answers", _cut(_answers(template))
    names = sorted(k for k in m if k.startswith("tokenizer.chat_template."))
    if names:
        yield "  others", ", ".join(_cut(k.removeprefix("tokenizer.chat_template.")) for k in names)


def _answers(template: str) -> str:
    """Description of how the model writes reasoning and calls of tools."""
    try:
        return ChatFormat.of_template(template).description
    except ChatTemplateError as error:
        return f"not known: {error}"


def _sampling_lines(m: Metadata) -> Iterator[tuple[str, str]]:
    """The sampling defaults that the file recommends."""
    found = [(key.removeprefix(_SAMPLING), m[key]) for key in m if key.startswith(_SAMPLING)]
    shown = (f"{name} {f'{value:.6g}' if isinstance(value, float) else value}" for name, value in found)
    yield "sampling", ", ".join(map(_cut, shown)) or "no defaults of its own"


def _memory_lines(file: GGUFFile, context_size: int | None, kept: tuple[int, int] | None) -> Iterator[tuple[str, str]]:
    weights = sum(t.nbytes for t in file.tensors.values())
    yield "memory", f"{_bytes(weights)} for the weights"
    per_token, states = kept or (kv_bytes_per_token(file.metadata), 0)
    if states:
        yield "", f"up to {_bytes(states)} for the recurrent states of a request, whatever its length"
    if per_token is None:
        yield "", "KV cache: unknown"
    if not per_token:
        return
    trained = _int(file.metadata, "context_length")
    sizes = {context_size} if context_size else {4096, trained or 4096}
    for n in sorted(n for n in sizes if trained is None or n <= trained or n == context_size) or [4096]:
        yield "", f"up to {_bytes(int(per_token * n))} for the KV cache of {n:,} tokens in f16"


def _try(get: Callable[[], T]) -> T | None:
    try:
        return get()
    except MissingKeyError:
        return None


def _int(m: Metadata, key: str) -> int | None:
    """``ARCH.key``, None if it's absent, negative or no integer."""
    return _try(lambda: m.get_int(f"{m.arch}.{key}", minimum=0))


def _token_id(m: Metadata, key: str) -> int | None:
    return _try(lambda: m.get_int(key))


def _per_layer(m: Metadata, key: str) -> list[int]:
    """The values of an array of one for each layer, or the one value for all of them; empty if there is neither."""
    one = _int(m, key)
    if one is not None:
        return [one]
    array = _try(lambda: m.get_array(f"{m.arch}.{key}", int))
    return array.tolist() if array is not None and len(array) <= _MAX_LAYERS else []


def _token_text(tokens: GGUFArray | None, token: int) -> str:
    if tokens is None or not 0 <= token < len(tokens):
        return " (out of range)"
    return f" {_cut(tokens.bytes_at(token).decode(errors='replace'))!r}"


def _range(values: list[int], none: str = "0") -> str:
    """The least and the largest; ``none`` if there are zeros alone."""
    if not values:
        return _UNKNOWN
    if not any(values):
        return none
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _number(n: int | None) -> str:
    return _UNKNOWN if n is None else f"{n:,}"


def _first_line(text: str) -> str:
    return _cut(text.split("\n", 1)[0])


def _cut(text: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}…"


def _short(n: float) -> str:
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if n >= size:
            return f"{n / size:.3g}{unit}"
    return f"{n / 1e3:.3g}K"


def _bytes(n: int) -> str:
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if n >= 1 << power:
            return f"{n / (1 << power):,.2f} {unit}"
    return f"{n} bytes"
