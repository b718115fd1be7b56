"""A FastAPI application with a model inside: an endpoint with checked answers, and one that streams.

    pip install fastapi uvicorn
    APP_MODEL=qwen3-4b-q4_k_m.gguf uvicorn oxillama.examples.fastapi_app:app

Requests of all clients share the model's steps. One process is right: more workers would each hold the weights. For the
API of OpenAI, mount `oxillama.server.create_app` instead.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Literal

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

import oxillama as ox


class Review(BaseModel):
    """Request of a client."""

    text: str = Field(max_length=4000)


class Verdict(BaseModel):
    """Answer to a client; the model can write nothing else."""

    sentiment: Literal["good", "bad", "mixed"]
    stars: int = Field(ge=1, le=5)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Loads the model before the first request, and frees it after the last."""
    async with await ox.AsyncEngine.load(os.environ.get("APP_MODEL"), max_queue_size=64) as engine:
        app.state.engine = engine
        yield


def engine_of(request: Request) -> ox.AsyncEngine:
    """The application's engine."""
    engine: ox.AsyncEngine = request.app.state.engine
    return engine


app = FastAPI(lifespan=lifespan)
Model = Annotated[ox.AsyncEngine, Depends(engine_of)]


@app.post("/verdict")
async def verdict(review: Review, engine: Model) -> Verdict:
    """A verdict on a review. A client that leaves ends its request within one step of the model."""
    messages = [{"role": "user", "content": f"How does its author like the product?\n\n{review.text}"}]
    schema = Verdict.model_json_schema()
    try:
        answer = await engine.chat(messages, json_schema=schema, max_tokens=60, temperature=0, deadline=30.0)
    except ox.QueueFullError as error:
        raise HTTPException(429, str(error)) from None
    except ox.ContextOverflowError as error:
        raise HTTPException(413, str(error)) from None
    if answer.finish_reason != "stop":
        raise HTTPException(504, f"no answer: {answer.finish_reason}")
    checked: Verdict = Verdict.model_validate_json(answer.text)
    return checked


@app.post("/story")
async def story(review: Review, engine: Model) -> StreamingResponse:
    """A text as it is written. Leaving the stream cancels the request."""
    stream = engine.stream(review.text, max_tokens=200, temperature=0.8, seed=1)
    return StreamingResponse((chunk.text async for chunk in stream), media_type="text/plain; charset=utf-8")
