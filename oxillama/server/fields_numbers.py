"""Field tables of embeddings, ranking and tokens."""

from __future__ import annotations

from oxillama.config import MAX_CONTEXT
from oxillama.core.embedding import POOLINGS
from oxillama.sampler_config import MAX_TOKEN
from oxillama.server.field_types import Boolean, Choice, Either, Field, Integer, Limit, ListOf, Record, Text
from oxillama.server.fields import CHAT, MODEL, accepted
from oxillama.server.fields_sampling import IDS, refused

__all__ = ["CLASSIFY", "DETOKENIZE", "EMBEDDINGS", "OF_MESSAGES", "RERANK", "SCORE", "TOKENIZE"]

MAX_TEXTS = 1 << 16
TEXTS = Either({"string": Text(1), "array": ListOf(Text(1), MAX_TEXTS, 1)})
INPUT = Either({"string": Text(), "array": ListOf(
    Either({"string": Text(), "number": Integer(0, MAX_TOKEN), "array": IDS}), MAX_TEXTS, 1,
)})  # fmt: skip
DOCUMENT = Either({"string": Text(), "object": Record((Field("text", Text(), "of the document", required=True),))})
USER = accepted("user", Text(0, 512), "for the caller")
TRUNCATION = (
    Field("truncate", Either({"boolean": Boolean(), "string": Choice(("NONE", "START", "END"))}),
          "cut what doesn't fit the context, at the end (true, `END`) or the start; default false"),
    Field("truncation_direction", Choice(("Right", "Left")), "of `truncate`: `Left` cuts the start"),
    Field("truncate_prompt_tokens", Limit(1, MAX_CONTEXT), "cut to so many tokens; -1: to the context's"),
    Field("truncation_side", Choice(("right", "left")), "of `truncate_prompt_tokens`; default right, the end"),
)  # fmt: skip
_OWN = {field.name: field for field in CHAT.fields}
OF_MESSAGES = (
    "chat_template_kwargs", "chat_template", "reasoning_effort", "thinking", "add_generation_prompt",
    "continue_final_message",
)  # fmt: skip

EMBEDDINGS = Record((
    MODEL,
    Field("input", INPUT, "a text, token ids, or a list of these", required=True),
    Field("encoding_format", Choice(("float", "base64")), "base64: of float32, little end first"),
    Field("dimensions", Integer(1, 1 << 24), "the first so many values, of models trained for it"),
    Field("pooling", Choice(tuple(p for p in POOLINGS if p not in ("none", "rank"))), "default: what the file says"),
    Field("normalize", Boolean(), "divide by the length; default true"),
    *TRUNCATION,
    USER,
))  # fmt: skip
RERANK = Record((
    MODEL,
    Field("query", Text(), "what the documents are to answer", required=True),
    Field("documents", ListOf(DOCUMENT, MAX_TEXTS, 1), "texts, or objects with one", required=True),
    Field("top_n", Integer(1, MAX_TEXTS), "only the best"),
    Field("return_documents", Boolean(), "the documents beside their scores"),
    refused("max_chunks_per_doc", "documents are read whole"),
    refused("max_tokens_per_doc", "shorten the documents"),
    refused("rank_fields", "documents are texts"),
    *TRUNCATION,
    USER,
))  # fmt: skip
CLASSIFY = Record((
    MODEL,
    Field("input", INPUT, "a text, token ids, or a list of these", required=True),
    *TRUNCATION,
    USER,
))  # fmt: skip
SCORE = Record((
    MODEL,
    Field("text_1", TEXTS, "a text, or as many as `text_2` has", required=True),
    Field("text_2", TEXTS, "a text, or a list", required=True),
    *TRUNCATION,
    USER,
))  # fmt: skip
TOKENIZE = Record((
    MODEL,
    Field("prompt", Text(), "a text"),
    Field("messages", _OWN["messages"].kind, "a conversation, in place of `prompt`"),
    _OWN["tools"],
    *(_OWN[name] for name in OF_MESSAGES),
    Field("add_special_tokens", Boolean(), "of `prompt`: tokens that begin and end a text; default true"),
    Field("return_token_strs", Boolean(), "the text of each token, too"),
))  # fmt: skip
DETOKENIZE = Record((
    MODEL,
    Field("tokens", ListOf(Integer(0, MAX_TOKEN), MAX_CONTEXT), "token ids", required=True),
))  # fmt: skip
