"""`Llama`: the replaced package's class, a translation to an engine and a session of it."""

from __future__ import annotations

import os
import random
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from oxillama._util.checks import check_int
from oxillama._util.fork import renew_at_fork
from oxillama._util.lazy import lazy
from oxillama._util.pickling import with_fields
from oxillama.compat import chat, completion, embeddings, llama_types, pretrained
from oxillama.compat.drafts import engine_draft
from oxillama.compat.keywords import REQUIRED, Keyword, keywords
from oxillama.compat.llama_cache import BaseLlamaCache, LlamaCache, LlamaDiskCache, LlamaRAMCache
from oxillama.compat.llama_chat_format import get_chat_completion_handler
from oxillama.compat.llama_grammar import LlamaGrammar
from oxillama.compat.llama_speculative import LlamaDraftModel
from oxillama.compat.llama_tokenizer import BaseLlamaTokenizer, LlamaTokenizer
from oxillama.compat.one_sequence import OneSequence
from oxillama.compat.sampling import (
    CRITERIA,
    CUTS,
    GRAMMAR,
    MIROSTAT,
    OCCURRENCES,
    PROCESSOR,
    REPEAT,
    TEMP,
    TOP_K,
    Criterion,
    LogitsProcessor,
    LogitsProcessorList,
    MinTokensLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
    engine_processors,
    sampler_config,
)
from oxillama.compat.settings import CONSTRUCTOR, POOLINGS, engine_config, initial_seed
from oxillama.compat.wording import own_words
from oxillama.core.prompts import check_tokens
from oxillama.core.session import Session
from oxillama.engine import Engine
from oxillama.errors import ConfigError, GenerateError
from oxillama.kernels import elementary
from oxillama.layer_state import KvShape, RecurrentShape
from oxillama.sampling import Sampler
from oxillama.tokenizer import Tokenizer

__all__ = [
    "BaseLlamaCache",
    "BaseLlamaTokenizer",
    "Llama",
    "LlamaCache",
    "LlamaDiskCache",
    "LlamaDraftModel",
    "LlamaGrammar",
    "LlamaRAMCache",
    "LlamaState",
    "LlamaTokenizer",
    "LogitsProcessor",
    "LogitsProcessorList",
    "MinTokensLogitsProcessor",
    "StoppingCriteria",
    "StoppingCriteriaList",
]

_COMMON = (TOP_K, *CUTS, TEMP, REPEAT)
SAMPLE: tuple[Keyword, ...] = (
    *_COMMON,
    *OCCURRENCES,
    *MIROSTAT[:2],
    *MIROSTAT[:1:-1],
    *PROCESSOR,
    GRAMMAR,
    Keyword("idx", None, "honoured", "position whose logits count; another than the last needs `logits_all=True`"),
)
GENERATE: tuple[Keyword, ...] = (
    Keyword("tokens", REQUIRED, "honoured", "token ids"),
    *_COMMON,
    Keyword("reset", True, "honoured", "False: the tokens follow what was evaluated"),
    *OCCURRENCES,
    *MIROSTAT,
    *PROCESSOR,
    CRITERIA,
    GRAMMAR,
)


class LlamaState:
    """State that `save_state` gives: tokens and scores so far, a snapshot of their KV, and the seed."""

    def __init__(
        self, input_ids: NDArray[np.intc], scores: NDArray[np.single], n_tokens: int, llama_state: bytes,
        llama_state_size: int, seed: int | None,
    ) -> None:  # fmt: skip
        self.input_ids, self.scores, self.n_tokens = input_ids, scores, n_tokens
        self.llama_state, self.llama_state_size, self.seed = llama_state, llama_state_size, seed


class _Parameters:
    """Settings by name, as attributes."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.__dict__.update(given)


class Llama:
    """A loaded model with the replaced package's methods.

    Any thread may call it: completions, chats and embeddings of several threads share the model's steps. `eval`,
    `sample`, `generate` and the states work on one sequence, which a lock keeps to one call at a time.

    engine: the `oxillama.Engine` beneath. Raises ConfigError (a ValueError) and TypeError, which name the keyword, and
    what `oxillama.load` raises.
    """

    CONSTRUCTOR: ClassVar[tuple[Keyword, ...]] = CONSTRUCTOR

    @keywords(CONSTRUCTOR, n_positional=1)
    def __init__(self, given: dict[str, Any]) -> None:
        self._given = given
        self._load(given)

    def _load(self, given: dict[str, Any]) -> None:
        config = engine_config(given)
        self.model_path = os.fspath(cast(str, config.model_path))
        self.renew_lock()
        renew_at_fork(self)
        self._seed = initial_seed(given["seed"])
        self.verbose, self.logits_all, self.spm_infill = given["verbose"], given["logits_all"], given["spm_infill"]
        self.for_embedding: bool = given["embedding"]
        self.last_n_tokens_size = given["last_n_tokens_size"]
        self.cache: BaseLlamaCache | None = None
        self.n_batch = config.prefill_chunk_size
        self._n_ctx = config.context_size or 0
        self._engine: Engine | None = None
        if given["vocab_only"]:
            self.vocabulary = Tokenizer.from_gguf(self.model_path, overrides=config.overrides)
        else:
            self._engine = Engine(config)
            self.vocabulary = self._engine.tokenizer
            if given["lora_path"] is not None:
                self._engine.apply_lora(given["lora_path"], given["lora_scale"])
        self.tokenizer_: BaseLlamaTokenizer = given["tokenizer"] or LlamaTokenizer(self)
        self.chat_format, self.chat_handler = given["chat_format"], given["chat_handler"]
        if self.chat_format is None and self.chat_handler is None:
            self.chat_format = "llama-2" if self.vocabulary.chat_template is None else chat.OF_FILE
        self.draft_model = given["draft_model"]
        self._draft = engine_draft(self.draft_model)
        self.n_tokens = 0
        self.input_ids = np.zeros(self._n_ctx, np.intc)
        self.model_params = self.context_params = _Parameters({**given, "n_ctx": self._n_ctx})
        self._session: Session | None = None

    # ---- the model

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise GenerateError("the model was loaded with vocab_only=True or closed: it has no weights")
        return self._engine

    @lazy
    def scores(self) -> NDArray[np.single]:
        """Logits by position, float32 [n_ctx, n_vocab]: of all tokens evaluated with logits_all, else of the last."""
        return np.zeros((self._n_ctx, self.n_vocab()), np.single)

    @lazy
    def metadata(self) -> dict[str, str]:
        """The file's metadata but its arrays, as text."""
        from oxillama import gguf

        with gguf.open(self.model_path) as file:
            return {k: _as_text(v) for k, v in file.metadata.items() if isinstance(v, str | bool | int | float)}

    @property
    def model(self) -> Self:
        """Handle that `llama_model_get_vocab` and other functions of `llama_cpp` take."""
        return self

    ctx = _ctx = _model = model  # other packages look for these

    def renew_lock(self) -> None:
        """Makes a new lock, in a forked child: a thread of the parent may hold the old one."""
        self._lock = threading.RLock()

    @property
    def lock(self) -> threading.RLock:
        """Held by calls on one sequence."""
        return self._lock

    @lazy
    def one_sequence(self) -> OneSequence:
        """The sequence of `llama_decode`."""
        return OneSequence(self.engine)

    @property
    def _kept(self) -> set[type]:
        """Kinds of what the layers keep of a sequence."""
        return {type(shape) for layer in self.engine.model_config.states for shape in layer}

    @property
    def _is_recurrent(self) -> bool:
        """Whether all layers keep states of a fixed size."""
        return self._kept == {RecurrentShape}

    @property
    def _is_hybrid(self) -> bool:
        """Whether some layers keep such states, and others keys and values."""
        return self._kept == {RecurrentShape, KvShape}

    @property
    def penalty_window(self) -> int:
        size: int = self.last_n_tokens_size
        return self._n_ctx if size < 0 else size

    @property
    def n_threads(self) -> int:
        return self.engine.num_threads

    def n_ctx(self) -> int:
        """Tokens of one request, prompt and output together."""
        return self._n_ctx

    def n_embd(self) -> int:
        """Length of a hidden state."""
        return self.engine.model_config.n_embd

    def n_vocab(self) -> int:
        """Length of a row of logits."""
        return self.vocabulary.n_vocab

    def token_eos(self) -> int:
        """-1 if there is none, as `token_bos` and `token_nl`."""
        return _or_none(self.vocabulary.eos_id)

    def token_bos(self) -> int:
        return _or_none(self.vocabulary.bos_id)

    def token_nl(self) -> int:
        ids = self.vocabulary.encode("\n", False, continuation=True)
        return ids[0] if len(ids) == 1 else -1

    def tokenizer(self) -> LlamaTokenizer:
        return LlamaTokenizer(self)

    def pooling_type(self) -> int:
        """Number of the pooling of `embed`: LLAMA_POOLING_TYPE_…"""
        numbers = {name: number for number, name in POOLINGS.items()}
        return numbers[self.pooling]

    @property
    def pooling(self) -> str:
        """Name of the pooling of `embed`: the constructor's, else that of the file, else "none"."""
        named = POOLINGS[self._given["pooling_type"]]
        if named is not None:
            return named
        number = self.engine.metadata.get(f"{self.engine.model_config.arch}.pooling_type", 0)
        return POOLINGS.get(number) or "none"

    # ---- text and tokens

    @own_words
    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Token ids of UTF-8. special: the text of control tokens is read as those. Raises TokenizerError."""
        return self.tokenizer_.tokenize(text, add_bos, special)

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """UTF-8 of token ids. prev_tokens: what they follow. special: with the text of control tokens."""
        return self.tokenizer_.detokenize(list(tokens), None if prev_tokens is None else list(prev_tokens), special)

    def prompt_ids(self, text: str) -> list[int]:
        """Token ids of a text as a prompt."""
        if isinstance(self.tokenizer_, LlamaTokenizer):
            return self.vocabulary.encode(text, True, True)
        return list(self.tokenizer_.tokenize(text.encode(), True, True))

    def checked_ids(self, name: str, ids: Any) -> list[int]:
        """Token ids as a list. Raises TokenizerError, which names the place of one out of range."""
        return check_tokens(name, ids, self.n_vocab())

    # ---- seeds, caches, drafts

    def set_seed(self, seed: int) -> None:
        """The seed of the next `sample` and `generate`, and where those of completions without one begin."""
        with self._lock:
            self._seed = initial_seed(seed)

    def next_seed(self, given: Any) -> int | None:
        """The seed of a completion: the given one, or the next of those that follow from the constructor's."""
        with self._lock:
            if given is not None:
                self.set_seed(given)
            elif self._seed is not None:
                self._seed = random.Random(self._seed).randint(0, 1 << 32)
            return self._seed

    def set_cache(self, cache: BaseLlamaCache | None) -> None:
        """Bounds what the engine keeps of prompts and answers, by itself, to the cache's `capacity_bytes`.

        The least recently used goes, after each completion. The cache itself gets no states.
        """
        if cache is not None and not isinstance(cache, BaseLlamaCache):
            raise ConfigError(f"cache must be a LlamaRAMCache or None, not {type(cache).__name__}")
        self.cache = cache

    def keep_bounds(self) -> None:
        """Forgets the least recently used of the prefix cache, as far as that of `set_cache` is too small for it."""
        cache = self.cache
        if cache is not None and self.engine.prefix_cache_bytes() > cache.capacity_bytes:
            self.engine.shrink_to_fit(cache.capacity_bytes)

    def draft_options(self) -> dict[str, Any]:
        return {} if self._draft is None else {"draft": self._draft[0], "num_speculative": self._draft[1]}

    # ---- completions, chats, embeddings

    @keywords(completion.COMPLETION)
    def create_completion(self, options: dict[str, Any]) -> dict[str, Any] | Iterator[dict[str, Any]]:
        """Continues a prompt: a dict, or with `stream` an iterator of them.

        Raises ConfigError and TypeError, which name the keyword, ContextOverflowError, and what `Engine.generate` does.
        """
        ask = completion.read_ask(self, options)
        if ask.stream:
            return completion.chunk_dicts(ask)
        return completion.as_dict(ask, completion.computed(ask))

    __call__ = create_completion

    @keywords(chat.CHAT)
    def create_chat_completion(self, options: dict[str, Any]) -> dict[str, Any] | Iterator[dict[str, Any]]:
        """Answers messages: a dict, or with `stream` an iterator of them.

        Raises MessageError, ChatTemplateError, ToolFormatError, and what `create_completion` raises.
        """
        handler = self.chat_handler
        if handler is None:
            of_file = chat.has_template(self)
            handler = chat.from_template if of_file else get_chat_completion_handler(self.chat_format)
        found: dict[str, Any] | Iterator[dict[str, Any]] = handler(llama=self, **options)
        return found

    def create_chat_completion_openai_v1(self, *args: Any, **given: Any) -> Any:
        """Like `create_chat_completion`, with objects of the package `openai`. Raises ImportError without it."""
        from openai.types.chat import (  # type: ignore[import-not-found, unused-ignore]
            ChatCompletion,
            ChatCompletionChunk,
        )

        answer = self.create_chat_completion(*args, **given)
        if isinstance(answer, dict):
            return ChatCompletion(**answer)
        return (ChatCompletionChunk(**chunk) for chunk in answer)

    @own_words
    def create_embedding(self, input: str | list[str], model: str | None = None) -> dict[str, Any]:
        """Embeddings of texts as a dict. Raises what `embed` raises."""
        return embeddings.created(self, input, model)

    @own_words
    def embed(
        self, input: str | list[str], normalize: bool = False, truncate: bool = True, return_count: bool = False
    ) -> Any:
        """Lists of floats, one for each text, or with pooling "none" one for each token of each text.

        return_count: (lists, tokens in all). Raises GenerateError (a RuntimeError) without `embedding=True`; ValueError
        for a text of more than n_batch tokens without `truncate`.
        """
        return embeddings.embedded(self, input, normalize, truncate, return_count)

    # ---- one sequence, by hand

    @property
    def session(self) -> Session:
        """The sequence of `eval`, `sample` and `generate`."""
        if self._session is None:
            self._session = self.engine.session()
        return self._session

    @property
    def _input_ids(self) -> NDArray[np.intc]:
        return self.input_ids[: self.n_tokens]

    @property
    def _scores(self) -> NDArray[np.single]:
        return self.scores[: self.n_tokens]

    @property
    def eval_tokens(self) -> deque[int]:
        """Tokens evaluated."""
        return deque(self._input_ids.tolist(), maxlen=self._n_ctx)

    @property
    def eval_logits(self) -> deque[list[float]]:
        """Logits of the tokens evaluated; of the last one without logits_all."""
        most = self._n_ctx if self.logits_all else 1
        return deque(map(np.ndarray.tolist, self._scores[-most:]), maxlen=most)

    def reset(self) -> None:
        """Forgets the tokens evaluated."""
        with self._lock:
            self.n_tokens = 0

    @own_words
    def eval(self, tokens: Sequence[int]) -> None:
        """Evaluates tokens after those so far. Raises TokenizerError, ContextOverflowError, KvCacheFullError."""
        ids = self.checked_ids("tokens", tokens)
        if not ids:
            return
        with self._lock:
            start, end = self.n_tokens, self.n_tokens + len(ids)
            if self.logits_all:
                self.session.forward_logits(ids, start, out=self.scores[start:end])
            else:
                self.scores[end - 1] = self.session.forward_prefill(ids, start)
            self.input_ids[start:end] = ids
            self.n_tokens = end

    @keywords(SAMPLE)
    def sample(self, options: dict[str, Any]) -> int:
        """Draws a token to follow those evaluated; `eval` appends it. Raises GenerateError if there are none."""
        with self._lock:
            if not self.n_tokens:
                raise GenerateError("sample() needs logits: eval() tokens first")
            config = sampler_config(options, self.penalty_window, self._seed)
            processors = engine_processors(options["logits_processor"])
            idx = options["idx"]
            if idx is not None and idx != self.n_tokens - 1:
                check_int("idx", idx, 0, self.n_tokens - 1)
                if not self.logits_all:
                    raise ConfigError(f"idx must be {self.n_tokens - 1}, the last, without logits_all=True, not {idx}")
                sampler = Sampler(config, prompt=self.input_ids[: idx + 1].tolist(), processors=processors)
                return sampler.sample(self.scores[idx].copy())
            self._refresh()
            return self.session.sample(config, logits_processors=processors)

    def _refresh(self) -> None:
        """The session's logits, where it went back since they were computed."""
        if self.session.position > self.n_tokens:
            self.session.truncate(self.n_tokens)
        if self.session.logits is None:
            self.session.forward_decode(int(self.input_ids[self.n_tokens - 1]), self.n_tokens - 1)

    @keywords(GENERATE)
    def generate(self, options: dict[str, Any]) -> Generator[int, Sequence[int] | None, None]:
        """Tokens after a prompt, one after another, also those that end a text; `send` appends further tokens.

        Beginnings that the sequence has already aren't evaluated again. Ends at the context's end.
        """
        ids = self.checked_ids("tokens", options.pop("tokens"))
        if options.pop("reset"):
            with self._lock:
                common = self.longest_token_prefix(self._input_ids.tolist(), ids)
                self.n_tokens = min(common, max(len(ids) - 1, 0))
                ids = ids[self.n_tokens :]
        with self._lock:
            self.session.sampler = None
        return self._tokens(ids, options)

    def _tokens(self, ids: list[int], options: dict[str, Any]) -> Generator[int, Sequence[int] | None, None]:
        criteria = options.pop("stopping_criteria")
        criterion = None if criteria is None else Criterion(criteria)
        self.eval(ids)
        while True:
            token = self.sample(**options)
            if criterion is not None and criterion([*self._input_ids.tolist(), token], self.scores[self.n_tokens - 1]):
                return
            more = yield token
            following = [token, *(() if more is None else more)]
            if self.n_tokens + len(following) > self._n_ctx:
                return
            self.eval(following)

    @own_words
    def save_state(self) -> LlamaState:
        """The sequence as it is, for `load_state`, also of another `Llama` of the same model."""
        with self._lock:
            if self.session.position > self.n_tokens:
                self.session.truncate(self.n_tokens)
            data = self.session.snapshot_bytes()
            return LlamaState(self.input_ids.copy(), self._scores.copy(), self.n_tokens, data, len(data), self._seed)

    @own_words
    def load_state(self, state: LlamaState) -> None:
        """Goes on from a state. Raises SnapshotError and its children."""
        with self._lock:
            session = self.engine.resume(state.llama_state)
            if not isinstance(session, Session):
                raise ConfigError("state must be one that save_state() gave")
            if self._session is not None:
                self._session.close()
            self._session, self.n_tokens, self._seed = session, state.n_tokens, state.seed
            self.input_ids[:] = 0
            self.input_ids[: state.n_tokens] = state.input_ids[: state.n_tokens]
            self.scores[: state.n_tokens] = state.scores[: state.n_tokens]

    # ---- statics, and life

    @staticmethod
    def logits_to_logprobs(logits: Any, axis: int = -1) -> NDArray[np.single]:
        """Log-softmax along an axis, float32."""
        rows = np.asarray(logits, np.single)
        highest = rows.max(axis=axis, keepdims=True)
        shifted = rows - np.where(np.isfinite(highest), highest, np.single(0))
        total = elementary.exp(shifted).sum(axis=axis, keepdims=True)
        found: NDArray[np.single] = (shifted - elementary.log(total)).astype(np.single)
        return found

    @staticmethod
    def longest_token_prefix(a: Sequence[int], b: Sequence[int]) -> int:
        """Number of tokens that two sequences begin with alike."""
        return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))

    @classmethod
    def from_pretrained(
        cls, repo_id: str, filename: str | None, additional_files: list[str] | None = None, local_dir: Any = None,
        local_dir_use_symlinks: Any = "auto", cache_dir: Any = None, **given: Any,
    ) -> Self:  # fmt: skip
        """A model of the Hugging Face Hub, from its local cache or downloaded. filename: may be a glob pattern; None
        where repo_id is a name as `oxillama pull` takes it: hf:OWNER/REPO, OWNER/REPO:QUANT or an address of the Hub.

        Raises ConfigError for no or several files of that name, and what `oxillama.from_hub` raises.
        """
        path = pretrained.fetched(
            repo_id,
            filename,
            additional_files,
            {"local_dir": local_dir, "cache_dir": cache_dir},
            local_dir_use_symlinks,
        )
        model: Self = cls(model_path=path, **given)
        return model

    def close(self) -> None:
        """Frees the model; further calls do nothing."""
        if self._engine is not None:
            self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return with_fields, (type(self), dict(self._given))


def _as_text(value: str | bool | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:f}" if isinstance(value, float) else str(value)


def _or_none(token: int | None) -> int:
    return -1 if token is None else token


def __getattr__(name: str) -> Any:
    """Types of answers, which the replaced package's module has, too."""
    if name[:1].isupper() and hasattr(llama_types, name):
        return getattr(llama_types, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
