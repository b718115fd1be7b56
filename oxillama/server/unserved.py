"""Paths of llama-server and Ollama that are not served, and what there is instead."""

from __future__ import annotations

__all__ = ["INSTEAD"]

_COMPLETION = "POST /v1/completions continues a text, and POST /infill fills a gap"
_SLOTS = "there are no slots: beginnings are found by their tokens, and GET /admin/requests tells what is under way"

# Path -> what to ask in its place.
INSTEAD = {
    "/props": "GET /v1/models tells the context size, and GET /tokenizer_info the chat template",
    "/slots": _SLOTS,
    **{f"/slots/{n}": _SLOTS for n in range(8)},
    "/completion": _COMPLETION,
    "/v1/completion": _COMPLETION,
    "/embedding": "POST /v1/embeddings gives embeddings",
    "/reranking": "POST /v1/rerank orders documents",
    "/v1/reranking": "POST /v1/rerank orders documents",
    "/lora-adapters": "GET /v1/models lists adapters, and the field lora of a request gives their scales",
    "/v1/audio/transcriptions": "sound can't be read",
    "/cors-proxy": "nothing is ever fetched",
    "/tools": "tools are those of a request",
    "/api/me": "there are no accounts: keys are those of --api-key-file",
    "/api/signout": "there are no accounts: keys are those of --api-key-file",
    "/api/status": "GET /ready tells whether the models are there",
    "/api/experimental/web_search": "nothing is ever fetched",
    "/api/experimental/web_fetch": "nothing is ever fetched",
}
