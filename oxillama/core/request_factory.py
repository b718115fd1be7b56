"""Request factory: generation requests from prompts and options, with cached grammars."""

import sys
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from functools import partial
from typing import Any

from blake3 import blake3

from oxillama._util.lazy import lazy
from oxillama._util.owned import Bound, OwnedCache
from oxillama.chat.answer_reading import AnswerReading
from oxillama.core.answer_options import HeldText, ToolUse, warnings_of
from oxillama.core.draft_options import NO_DRAFTS, DraftOptions
from oxillama.core.draft_scheduler import BoundDrafts
from oxillama.core.generation_request import ControlStopMatcher, GenerationRequest, StopMatcher
from oxillama.core.logprobs import LogprobComputer, LogprobRecorder
from oxillama.core.options import TextOptions
from oxillama.core.prompts import Side, check_length, check_tokens, cut_ids, cut_text
from oxillama.core.request import ResultQueue
from oxillama.drafts.draft import Target
from oxillama.errors import ConfigError, ContextOverflowError, GrammarError
from oxillama.grammar import Grammar, GrammarState, Vocabulary
from oxillama.grammar.automaton import RuleSet
from oxillama.grammar.gbnf import parse_gbnf
from oxillama.grammar.regular import choices_rules, regex_rules
from oxillama.kernels.sampling import Candidates
from oxillama.lora import LoraRegistry
from oxillama.sampler_config import SamplerConfig, SchemaMode
from oxillama.sampling import LogitsProcessor, Sampler, SamplerChain
from oxillama.sampling.masks import TokenMasks
from oxillama.sampling.state import SamplerState
from oxillama.scheduling.sequence import Sequence, SourceLayout
from oxillama.tokenizer import Tokenizer

__all__ = [
    "ALL_BYTES",
    "ALL_GRAMMARS",
    "OWN_BYTES",
    "OWN_GRAMMARS",
    "GrammarCache",
    "RequestFactory",
]

# Grammars, compiled and with their masks, that are kept for one owner, and for all of them.
OWN_GRAMMARS, OWN_BYTES = 256, 64 << 20
ALL_GRAMMARS, ALL_BYTES = 1024, 256 << 20
WATCHED = 16  # whose sizes are looked at again at each use: masks are made while texts are written

# Of a constraint by its field, but for GBNF, which names tokens of the vocabulary, and for schemas.
_GRAMMARS: dict[str, Callable[[Any], Grammar]] = {"regex": Grammar.from_regex, "choices": Grammar.from_choices}
_RULES: dict[str, Callable[[Any], tuple[RuleSet, int]]] = {"regex": regex_rules, "choices": choices_rules}


class GrammarCache:
    """Cache of the grammars that texts of one engine are held to, over its vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        bounds = Bound(OWN_GRAMMARS, OWN_BYTES), Bound(ALL_GRAMMARS, ALL_BYTES)
        self._kept: OwnedCache[HeldText] = OwnedCache(lambda known, held: held.grammar.n_bytes(), *bounds, WATCHED)
        self._faults: OwnedCache[str] = OwnedCache(_n_bytes, *bounds)

    @lazy
    def _vocabulary(self) -> Vocabulary:
        """The tokens as grammars see them; takes a moment, once."""
        t = self._tokenizer
        return Vocabulary([None if t.is_special(i) else t.token_bytes(i) for i in range(t.n_vocab)], t.eog_ids)

    def state(
        self, config: SamplerConfig, tools: ToolUse | None = None, owner: str | None = None
    ) -> GrammarState | None:
        """The beginning of a text under the constraint of a request's settings, or with calls of tools.

        owner: what is compiled is kept for later texts of the same one, so that its time tells nothing of others'.
        Raises GrammarError.
        """
        held = self.held(config, tools, owner)
        return None if held is None else held.grammar.state(self._vocabulary, triggers=held.triggers, at_line=True)

    def held(self, config: SamplerConfig, tools: ToolUse | None = None, owner: str | None = None) -> HeldText | None:
        """The grammar of that, and which of the tools it leaves free; None for a text that is held to nothing.

        owner, errors: those of `state`.
        """
        mode = config.schema_mode
        if config.constraint is not None:
            kind, source = config.constraint
            known: Hashable = config.constraint if kind == "grammar" or kind in _GRAMMARS else (kind, source, mode)
            if tools is not None and tools.frames:
                known = (known, tools.format, tools.prompt, tools.reasoning)
                return self._found(owner, known, lambda: HeldText(self._framed(kind, source, mode, tools)))
            return self._found(owner, known, lambda: HeldText(self._compiled(kind, source, mode)))
        if tools is not None and tools.tools is not None:
            key = (tools.format, tools.tools, tools.choice, tools.parallel, tools.prompt, tools.reasoning, mode)
            return self._found(owner, key, lambda: tools.grammar(self._tokenizer, mode))
        return None

    def fault(self, kind: str, source: str, owner: str | None) -> str:
        """Why no grammar can hold texts to a schema or a pattern, "" if one can.

        kind: the field of `SamplerConfig` that it is. owner: as of `state`.
        """
        known = blake3(f"{kind} {source}".encode(errors="surrogatepass")).digest()
        found = self._faults.find(owner, known)
        if found is None:
            try:
                self._compiled(kind, source, "full")
                found = ""
            except GrammarError as error:
                found = str(error)
            self._faults.put(owner, known, found)
        return found

    def _compiled(self, kind: str, source: Any, mode: SchemaMode) -> Grammar:
        if kind == "grammar":
            return Grammar.parse(source, token_id=self._tokenizer.token_to_id)
        if kind in _GRAMMARS:
            return _GRAMMARS[kind](source)
        from oxillama.grammar.json_schema import JsonSchemaCompiler  # twenty modules, which only schemas need

        return JsonSchemaCompiler.compile(source, mode=mode)

    def _framed(self, kind: str, source: Any, mode: SchemaMode, tools: ToolUse) -> Grammar:
        """Grammar of what stands behind reasoning, and in the frame of a chat format."""
        if kind == "grammar":
            rules = parse_gbnf(source, self._tokenizer.token_to_id, None)
        elif kind in _RULES:
            rules = _RULES[kind](source)
        else:
            return tools.constrained(self._tokenizer, source, None, mode)
        return tools.constrained(self._tokenizer, None, rules, mode)

    def clear(self) -> None:
        """Forgets what was compiled for all owners; texts that follow some of it go on."""
        self._kept.clear()
        self._faults.clear()

    def _found(self, owner: str | None, known: Hashable, make: Callable[[], HeldText]) -> HeldText:
        """Looks up what is kept for an owner, made if it isn't there. What can't be made leaves nothing behind."""
        held = self._kept.find(owner, known)
        return self._kept.put(owner, known, make()) if held is None else held


def _n_bytes(known: Hashable, fault: str) -> int:
    return sys.getsizeof(known) + sys.getsizeof(fault)


Named = SequenceOf[tuple[str, Any]]  # prompts with what messages call them


class RequestFactory:
    """Builds requests for one engine."""

    def __init__(self, tokenizer: Tokenizer, n_vocab: int, context_size: int, n_cached: int, loras: LoraRegistry,
                 kv_type: str = "f16", sampling_defaults: SamplerConfig | None = None,
                 source: SourceLayout | None = None) -> None:  # fmt: skip
        """`n_cached`: tokens that the KV cache holds; `kv_type`: how. `source`: of prompts that an encoder reads."""
        self.loras, self.kv_type = loras, kv_type
        # Of calls that give no settings. A model's file recommends none that have token ids, which it may lack.
        self.default_chain = SamplerChain.from_config(sampling_defaults or SamplerConfig())
        self._tokenizer = tokenizer
        self.end_ids = tokenizer.eog_ids  # that end a text, unless a request says otherwise
        self._n_vocab = n_vocab
        self._context_size = context_size
        self._n_cached = n_cached
        self._source = source
        # Requests draw their tokens one after another: one buffer does for all.
        self._scratch = Candidates()
        self.scorer = LogprobComputer(partial(_token_bytes, tokenizer), self._scratch)
        self._grammars = GrammarCache(tokenizer)
        self._drafts = BoundDrafts(Target(tokenizer, n_vocab, context_size, source is not None))

    @property
    def n_vocab(self) -> int:
        """Length of a row of logits."""
        return self._n_vocab

    @property
    def context_size(self) -> int:
        """Tokens of one request, prompt and output together."""
        return self._context_size

    @property
    def room(self) -> int:
        """Tokens of one request that runs alone: the context, or as much of it as the KV cache holds."""
        return min(self._context_size, self._n_cached)

    def forget_texts(self) -> None:
        """Forgets ids and grammars that are kept of texts; no result changes."""
        self._grammars.clear()
        self._tokenizer.forget_texts()

    def fault(self, kind: str, source: str, owner: str | None) -> str:
        """`GrammarCache.fault`: why texts can't be held to a schema or a pattern."""
        return self._grammars.fault(kind, source, owner)

    def text_of(self, tokens: list[int]) -> str:
        """Text of tokens that follow a prompt."""
        stream = self._tokenizer.stream(skip_special=True)
        return "".join(map(stream.push, tokens)) + stream.flush()

    def plain_sampler(self, chain: SamplerChain, end_ids: Iterable[int] = ()) -> Sampler:
        """Sampler at the beginning of a text that these tokens end, whatever the prompt."""
        grammar = self._grammars.state(chain.config)
        return Sampler(chain, scratch=self._scratch, grammar=grammar, spelling=self._spelling, end_ids=end_ids)

    def sampler(self, chain: SamplerChain, prompt: list[int], processors: Iterable[LogitsProcessor]) -> Sampler:
        """Sampler at the beginning of a text after a prompt, to be used by one thread beside the engine's steps.

        Raises ConfigError for token ids that the model doesn't have, GrammarError.
        """
        chain.config.check_ids(self._n_vocab)
        grammar = self._grammars.state(chain.config)
        return Sampler(
            chain, prompt=prompt, grammar=grammar, token_bytes=self._tokenizer.token_bytes, processors=processors,
            spelling=self._spelling, end_ids=self.end_ids,
        )  # fmt: skip

    def _spelling(self, text: str) -> list[int]:
        """Tokens of a text in the middle of another."""
        return self._tokenizer.encode(text, add_special=False, continuation=True)

    def ends(self, ignore_eos: bool, stop_token_ids: tuple[int, ...]) -> frozenset[int]:
        """Tokens that end a text. Raises ConfigError for ids that the model doesn't have."""
        highest = max(stop_token_ids, default=0)
        if highest >= self._n_vocab:
            raise ConfigError(
                f"stop_token_ids must have token ids of this model, from 0 to {self._n_vocab - 1}, not {highest}"
            )
        return frozenset((*(() if ignore_eos else self.end_ids), *stop_token_ids))

    def _sampler(
        self, ids: list[int], options: TextOptions, end_ids: Collection[int], leader: GenerationRequest | None
    ) -> Sampler:
        """Sampler of a request for text after `ids`; completions of one prompt have the masks of the first."""
        chain, tools = options.chain, options.tool_use
        memory = SamplerState(chain.config, ids, self._tokenizer.token_bytes)
        if chain.constrained or tools is not None:
            memory.grammar = self._grammars.state(chain.config, tools, options.serving.cache_salt)
        if chain.masked:
            of_leader = leader and leader.sampler.memory.masks
            memory.masks = of_leader or TokenMasks(chain.config, spelling=self._spelling, end_ids=end_ids)
        return Sampler.of(chain, memory, self._scratch, options.logits_processors)

    def ids(self, name: str, prompt: Any) -> list[int]:
        """Token ids of a prompt: text gets the special tokens that the model wants, ids are taken as they are.

        Raises ConfigError if there is nothing, TokenizerError for bad ids, ContextOverflowError for a text that is
        known to be too long before it is tokenised.
        """
        if isinstance(prompt, str):
            if not prompt:
                raise ConfigError(
                    f"{name} is empty: give text, or token ids ([bos_id] for the mark of the beginning alone)"
                )
            check_length(self._tokenizer, name, prompt, self._context_size)
            ids = self._tokenizer.encode(prompt)
        else:
            ids = check_tokens(name, prompt, self._n_vocab)
        if not ids:
            raise ConfigError(f"{name} is empty: give at least one token")
        return ids

    def cut(self, name: str, prompt: Any, side: Side | None, size: int | None = None) -> tuple[list[int], bool]:
        """`fitting`, or if there is a side at which texts are cut, `size` tokens at most (None: those of the context);
        and whether some are left out."""
        if side is None:
            return self.fitting(name, prompt), False
        most = self._context_size if size is None else size
        if isinstance(prompt, str) and prompt:
            return cut_text(self._tokenizer, prompt, most, side)
        ids = self.ids(name, prompt)
        return cut_ids(ids, most, side), len(ids) > most

    def fitting(self, name: str, prompt: Any) -> list[int]:
        """`ids` of what needs no room for output. Raises ContextOverflowError too."""
        ids = self.ids(name, prompt)
        if len(ids) > self._context_size:
            raise ContextOverflowError(
                f"{name} has {len(ids)} tokens and context_size is {self._context_size}: shorten it, or load with a "
                "larger context_size",
                len(ids),
            )
        return ids

    def place(self, ids: list[int], fields: Mapping[str, Any]) -> tuple[list[int], dict[str, Any]]:
        """Tokens of a sequence with this prompt, and its fields."""
        return (ids, dict(fields)) if self._source is None else self._source.place(ids, fields)

    def limit(self, name: str, n_prompt: int, max_tokens: int | None) -> int:
        """Number of tokens that may be generated. Raises ContextOverflowError if the prompt leaves no room for one."""
        room = self._context_size - n_prompt
        if room < (max_tokens != 0):
            output = ", which must also hold the output" if max_tokens != 0 else ""
            raise ContextOverflowError(
                f"{name} has {n_prompt} tokens and context_size is {self._context_size}{output}: shorten the "
                "prompt, or load with a larger context_size",
                n_prompt,
            )
        if max_tokens is not None:
            return min(room, max_tokens)
        return max(1, min(room, self._n_cached - n_prompt))

    def prepare(self, options: TextOptions) -> None:
        """Compiles what the text must follow. Raises GrammarError."""
        self._grammars.state(options.chain.config, options.tool_use)

    def bind(self, drafts: DraftOptions) -> None:
        """Makes drafts known to the engine before a request uses them. Raises ConfigError if one is of no use here."""
        if drafts.draft:
            self._drafts.speculation(drafts)

    def requests(self, prompts: Named, options: TextOptions, outbox: ResultQueue) -> list[GenerationRequest]:
        """Requests for each (name, prompt), one after another."""
        made: list[GenerationRequest] = []
        for name, prompt in prompts:
            ids = self.ids(name, prompt)
            echo = self.echo(prompt, ids) if options.echo else ""
            made += self.group(ids, options, outbox, name=name, index=len(made), echo=echo)
        return made

    def echo(self, prompt: Any, ids: list[int]) -> str:
        """A prompt as it stands before the text: as given, or of token ids their text without control tokens."""
        return prompt if isinstance(prompt, str) else self._tokenizer.decode(ids, skip_special=True)

    def group(
        self, ids: list[int], options: TextOptions, outbox: ResultQueue, *, name: str = "prompt", index: int = 0,
        echo: str = "", **held: Any,
    ) -> list[GenerationRequest]:  # fmt: skip
        """Makes as many requests for text after `ids` as are wanted; the first computes the prompt for all.

        `index`: of the first, which also gets `held`. `echo`: what stands before each text.
        """
        leader = self.request(ids, options, outbox, name=name, index=index, echo=echo, **held)
        made = [leader]
        for i in range(1, options.n_each):
            own = options.of_completion(i)
            made.append(self.request(ids, own, outbox, name=name, index=index + i, number=i, leader=leader, echo=echo))
        return made

    def _stops(
        self, options: TextOptions, end_ids: Collection[int], shown: Collection[int]
    ) -> tuple[StopMatcher | ControlStopMatcher, tuple[int, ...]]:
        """Matcher of the stop strings, and of the tokens that end a text and stay in it.

        shown: control tokens whose text is shown.
        """
        stop, keeps = options.stop, options.include_stop
        kept = options.stop_token_ids if keeps else ()
        if not stop or not any(map(self._tokenizer.control_texts.are_in, stop)):
            return StopMatcher(stop, keeps=keeps), kept
        texts = self._tokenizer.control_texts
        named = [token for token in end_ids if texts.get(token) in stop] if keeps else []
        return ControlStopMatcher(stop, texts, shown, keeps=keeps), (*kept, *named)

    def _reading(self, use: ToolUse, options: TextOptions) -> AnswerReading:
        """The reading of one text."""
        end = [] if use.reasoning_budget is None else use.end_of_reasoning(self._tokenizer)
        parser = use.parser_of(constrained=options.chain.config.constraint is not None)
        return AnswerReading(parser, use.reasoning_budget, end)

    def request(
        self, ids: list[int], options: TextOptions, outbox: ResultQueue, *, name: str = "prompt", number: int = 0,
        leader: GenerationRequest | None = None, **held: Any,
    ) -> GenerationRequest:  # fmt: skip
        """A request for text after `ids`, the completion of this `number`; `held` are options of `Request`."""
        if options.chain is not self.default_chain:
            options.chain.config.check_ids(self._n_vocab)
        if self._source is not None and options.prompt_logprobs is not None:
            raise ConfigError("prompt_logprobs must be left out: an encoder reads the prompt, and predicts none of it")
        serving, drafts, tools = options.serving, options.drafts, options.tool_use
        if leader is not None:  # a follower shares its blocks, whatever adapters are pushed meanwhile
            loras = leader.loras
        else:
            loras = self.loras.default if serving.lora is None else self.loras.select(serving.lora)
        tokens, fields = ids, serving.of_sequence(self.kv_type, loras)
        if self._source is not None:
            tokens, fields = self._source.place(ids, fields)
        max_tokens = self.limit(name, len(tokens), options.max_tokens)
        usual = not (options.ignore_eos or options.stop_token_ids)
        end_ids = self.end_ids if usual else self.ends(options.ignore_eos, options.stop_token_ids)
        # The last token is drawn, but never computed.
        sequence = Sequence(tokens, len(tokens) + max_tokens - 1, **fields)
        if options.prompt_logprobs is not None:
            sequence.cache_key = None  # rows of logits aren't cached
        bound = None if tools is None else self._grammars.held(options.chain.config, tools, serving.cache_salt)
        scores = leader.scores.sibling() if leader and leader.scores else None
        if scores is None and (options.logprobs is not None or options.prompt_logprobs is not None):
            scores = LogprobRecorder(self.scorer, options.logprobs, options.prompt_logprobs)
        shown = tools.delimiters(self._tokenizer) if tools else frozenset[int]()
        stops, kept_ids = self._stops(options, end_ids, shown)
        return GenerationRequest(
            sequence,
            outbox,
            sampler=self._sampler(tokens[sequence.n_encoded :], options, end_ids, leader),
            n_vocab=self._n_vocab,
            stream=self._tokenizer.stream(skip_special=True, shown=shown),
            stops=stops,
            max_tokens=max_tokens,
            end_ids=end_ids,
            kept_ids=kept_ids,
            min_tokens=options.chain.config.min_tokens,
            scores=scores,
            number=number,
            criteria=options.stopping_criteria,
            reading=self._reading(tools, options) if tools else None,
            speculation=self._drafts.speculation(drafts) if drafts.draft else None,
            free_tools=() if bound is None else bound.free,
            warnings=None if tools is None else warnings_of(tools, bound),
            leader=leader,
            cancel_token=options.cancel_token,
            time_limit=serving.time_limit,
            loras=loras,
            # A request that is kept keeps no draft alive.
            options=replace(options, drafts=NO_DRAFTS) if drafts.draft else options,
            **held,
        )


def _token_bytes(tokenizer: Tokenizer, token: int) -> bytes:
    """Nothing for rows of logits beyond the vocabulary."""
    return tokenizer.token_bytes(token) if token < tokenizer.n_vocab else b""
