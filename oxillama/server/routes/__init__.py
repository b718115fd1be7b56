"""Routes of the server: method, path, handler, and what the manual says of each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from oxillama.server import fields_ollama
from oxillama.server.exchange import Exchange
from oxillama.server.field_types import Record
from oxillama.server.fields import CHAT, COMPLETIONS
from oxillama.server.fields_infill import APPLY_TEMPLATE, INFILL
from oxillama.server.fields_messages import COUNT_TOKENS, MESSAGES
from oxillama.server.fields_numbers import CLASSIFY, DETOKENIZE, EMBEDDINGS, RERANK, SCORE, TOKENIZE
from oxillama.server.fields_responses import INPUT_TOKENS, RESPONSES
from oxillama.server.routes import ollama, ollama_embed, ollama_models, ollama_pull
from oxillama.server.routes.admin import (
    LOAD_ADAPTER,
    MODEL_NAME,
    NOTHING,
    UNLOAD_ADAPTER,
    cancel,
    clear_cache,
    drain,
    load_adapter,
    load_model,
    requests,
    unload_adapter,
    unload_model,
)  # fmt: skip
from oxillama.server.routes.chat import chat_completions
from oxillama.server.routes.completions import completions
from oxillama.server.routes.embeddings import classify, embeddings, rerank, score
from oxillama.server.routes.health import health, metrics, model, models, ready, version
from oxillama.server.routes.infill import apply_template, infill
from oxillama.server.routes.messages import count_message_tokens, messages
from oxillama.server.routes.responses import input_tokens, kept_response, responses
from oxillama.server.routes.tokens import detokenize, tokenize, tokenizer_info

__all__ = ["ROUTES", "Endpoint"]


@dataclass(frozen=True)
class Endpoint:
    """A route. record: the fields of its body; None without one."""

    method: str
    path: str
    handler: Callable[[Exchange], Awaitable[None]]
    text: str
    record: Record | None = None


ROUTES = (
    Endpoint("POST", "/v1/chat/completions", chat_completions, "an answer to a conversation (OpenAI)", CHAT),
    Endpoint("POST", "/chat/completions", chat_completions, "the same"),
    Endpoint("POST", "/v1/completions", completions, "the continuation of a text, and scores (OpenAI)", COMPLETIONS),
    Endpoint("POST", "/completions", completions, "the same"),
    Endpoint("POST", "/v1/responses", responses, "an answer in items (OpenAI); none is kept", RESPONSES),
    Endpoint("POST", "/responses", responses, "the same"),
    Endpoint("POST", "/v1/responses/input_tokens", input_tokens, "tokens of its prompt", INPUT_TOKENS),
    Endpoint("GET", "/v1/responses/{id}", kept_response, "404: none is kept"),
    Endpoint("DELETE", "/v1/responses/{id}", kept_response, "404: none is kept"),
    Endpoint("POST", "/v1/messages", messages, "an answer in blocks (Anthropic)", MESSAGES),
    Endpoint("POST", "/v1/messages/count_tokens", count_message_tokens, "tokens of its prompt", COUNT_TOKENS),
    Endpoint("POST", "/v1/embeddings", embeddings, "embeddings of texts (OpenAI)", EMBEDDINGS),
    Endpoint("POST", "/embeddings", embeddings, "the same"),
    Endpoint("POST", "/v1/rerank", rerank, "documents by how well they answer (Jina, Cohere)", RERANK),
    Endpoint("POST", "/v2/rerank", rerank, "the same"),
    Endpoint("POST", "/rerank", rerank, "the same"),
    Endpoint("POST", "/v1/score", score, "scores of pairs of texts (vLLM)", SCORE),
    Endpoint("POST", "/score", score, "the same"),
    Endpoint("POST", "/classify", classify, "labels of texts, with their probabilities (vLLM)", CLASSIFY),
    Endpoint("POST", "/infill", infill, "the text in a gap, for editors (llama-server)", INFILL),
    Endpoint("POST", "/apply-template", apply_template, "the prompt of a conversation (llama-server)", APPLY_TEMPLATE),
    Endpoint("POST", "/tokenize", tokenize, "tokens of a text or a conversation (vLLM)", TOKENIZE),
    Endpoint("POST", "/detokenize", detokenize, "the text of tokens (vLLM)", DETOKENIZE),
    Endpoint("GET", "/tokenizer_info", tokenizer_info, "control tokens and chat template (vLLM)"),
    Endpoint("GET", "/v1/models", models, "models and adapters, with what they can do"),
    Endpoint("GET", "/models", models, "the same"),
    Endpoint("GET", "/v1/models/{id:path}", model, "one of them"),
    Endpoint("GET", "/models/{id:path}", model, "the same"),
    Endpoint("POST", "/api/chat", ollama.chat, "an answer to a conversation (Ollama)", fields_ollama.CHAT),
    Endpoint("POST", "/api/generate", ollama.generate, "an answer to a prompt (Ollama)", fields_ollama.GENERATE),
    Endpoint("POST", "/api/embed", ollama_embed.embed, "embeddings of texts (Ollama)", fields_ollama.EMBED),
    Endpoint("POST", "/api/embeddings", ollama_embed.embeddings, "that of one text", fields_ollama.EMBEDDINGS),
    Endpoint("GET", "/api/tags", ollama_models.tags, "models and adapters (Ollama)"),
    Endpoint("POST", "/api/show", ollama_models.show, "one of them, with its metadata", fields_ollama.SHOW),
    Endpoint("GET", "/api/ps", ollama_models.running, "those in memory"),
    Endpoint("GET", "/api/version", ollama_models.version, "the version of Ollama's API that this is"),
    Endpoint(
        "POST",
        "/api/pull",
        ollama_pull.pull,
        "fetch a model into `--models-dir`, with `--allow-pull` (administrators, where there are keys); else 403, 501",
        fields_ollama.PULL,
    ),
    Endpoint(
        "DELETE",
        "/api/delete",
        ollama_pull.delete,
        "remove one that was pulled, with `--allow-delete` (likewise)",
        fields_ollama.DELETE,
    ),
    Endpoint(
        "POST",
        "/api/push",
        ollama_models.push,
        "501: models are files that the server is started with",
        fields_ollama.REGISTRY,
    ),
    Endpoint("POST", "/api/copy", ollama_models.copy, "the same", fields_ollama.COPY),
    Endpoint("POST", "/api/create", ollama_models.create, "the same", fields_ollama.CREATE),
    Endpoint("POST", "/api/blobs/{digest}", ollama_models.blob, "the same"),
    Endpoint("HEAD", "/api/blobs/{digest}", ollama_models.has_blob, "404: there is none"),
    Endpoint("POST", "/v1/load_lora_adapter", load_adapter, "load an adapter (vLLM; administrators)", LOAD_ADAPTER),
    Endpoint("POST", "/v1/unload_lora_adapter", unload_adapter, "unload it", UNLOAD_ADAPTER),
    Endpoint("POST", "/admin/models/load", load_model, "load a model", MODEL_NAME),
    Endpoint("POST", "/admin/models/unload", unload_model, "take an idle one out of memory", MODEL_NAME),
    Endpoint(
        "POST",
        "/admin/cache/clear",
        clear_cache,
        "give up what is kept of requests: KV, ids of texts, grammars",
        NOTHING,
    ),
    Endpoint("POST", "/admin/drain", drain, "take no further requests", NOTHING),
    Endpoint("GET", "/admin/requests", requests, "those under way, without their content"),
    Endpoint("DELETE", "/admin/requests/{id}", cancel, "end one"),
    Endpoint("GET", "/health", health, "200 as soon as the process answers, 503 while it ends"),
    Endpoint("GET", "/v1/health", health, "the same"),
    Endpoint("GET", "/ready", ready, "200 when models that load at start are loaded; else states, and why one failed"),
    Endpoint("GET", "/version", version, "version, CPU tier, threads"),
    Endpoint("GET", "/metrics", metrics, "Prometheus, or OpenMetrics by Accept"),
)
