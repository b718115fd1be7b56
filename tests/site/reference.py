"""API reference: which page of the site has which public name, as directives of mkdocstrings."""

from dataclasses import dataclass

__all__ = ["PAGES", "Page", "reference_pages"]


@dataclass(frozen=True)
class Page:
    """A page of the reference: file, title, its first paragraph, and what it has, by path from `oxillama`."""

    name: str
    title: str
    text: str
    names: tuple[str, ...]


def _split(names: str, prefix: str = "") -> tuple[str, ...]:
    return tuple(prefix + name for name in names.split())


PAGES = (
    Page("engine", "Engine", "A model that is loaded, and what it can do.", _split("load from_hub Engine Session")),
    Page("async-engine", "AsyncEngine", "The same calls for event loops.", _split("AsyncEngine")),
    Page("results", "Results", "What calls give back.", _split(
        "Completion Chunk TokenLogprob Usage Timings BatchFailure BeamHypothesis ContinuationScore "
        "Perplexity RankedDocument CancelToken")),
    Page("configuration", "Configuration", "Settings of an engine, of its offloading and of rotation.", _split(
        "EngineConfig RopeConfig OffloadPolicy show_config shipped_draft")),
    Page("keywords", "Keywords of calls", "The keywords that calls share: their types, and what they mean.", _split(
        "core.options.TextOptions core.options.ServingOptions core.draft_options.DraftOptions SamplerConfig "
        "BeamSearchConfig core.options.StreamOptions core.options.GenerateOptions core.options.ChatOptions "
        "core.options.PromptOptions core.options.InfillOptions core.options.BatchOptions core.options.RequestOptions "
        "config.SamplingOptions config.EngineOptions")),
    Page("sampling", "Sampling", "Samplers and distributions, for loops of your own.", _split(
        "Sampler SamplerChain Distribution")),
    Page("grammars", "Grammars", "Constrained output, compiled.", _split(
        "Grammar GrammarState JsonSchemaCompiler Vocabulary apply_grammar_mask")),
    Page("chat", "Chat and tools", "Templates, messages, reasoning, calls of tools and their dispatch.", _split(
        "ChatTemplate ChatFormat ChatMessage ChatDelta ChatParser ReasoningFormat ToolFormat ToolUse ToolCall "
        "BrokenToolCall ToolCallDelta ToolDispatcher ToolFunctions ToolResult")),
    Page("speculative", "Speculative decoding", "Drafts, and engines that have one.", _split(
        "SpeculativeEngine SpeculativeDecoder Draft DraftTask Proposal DraftModel PromptLookup GrammarDraft SpecStats "
        "DraftSelection select_draft synthesise_draft")),
    Page("lora", "Adapters", "LoRA adapters and their merging.", _split("Lora merge_lora")),
    Page("tokenizer", "Tokenizer", "Text and tokens.", _split("Tokenizer TokenStream")),
    Page("gguf", "GGUF files", "`oxillama.gguf`: reading, writing and quantising files.", _split(
        "open GGUFFile Metadata TensorInfo GGUFArray ValueType REQUIRED GGUFWriter write_gguf copy describe quantize "
        "quantize_file QuantizeSummary dequantize", "gguf.")),
    Page("snapshot", "Snapshots", "`oxillama.snapshot`: sessions and requests in files.", _split(
        "snapshot.snapshot_info snapshot.collect_garbage snapshot.SnapshotInfo snapshot.ModelFingerprint "
        "engine.functions.dump engine.functions.dumps engine.functions.load engine.functions.loads")),
    Page("scheduling", "Scheduling", "The scheduler and its parts, for a model of your own.", _split(
        "Scheduler Sequence SequenceState SequencePool KvCachePool PrefixKvCache")),
    Page("metrics", "Metrics", "Numbers of an engine.", _split(
        "MetricsSnapshot metrics.HistogramSnapshot metrics.Family")),
    Page("data", "Tables", "`oxillama.data`: mappers over tables.", _split(
        "Generate Embed Rerank Mapper col Column daft ray_processor", "data.")),
    Page("sentence-transformers", "Sentence embeddings", "`encode` as sentence-transformers has it.", _split(
        "SentenceTransformer", "integrations.sentence_transformers.")),
    Page("ray", "Clusters", "`oxillama.ray`: a model's server as an application of Ray Serve.", _split(
        "serve_app", "ray.")),
    Page("server", "Server", "`oxillama.server`: the application that `oxillama serve` runs.", _split(
        "create_app App", "server.app.") + _split("server.config.ServerConfig")),
    Page("compat", "llama-cpp-python's names", "`oxillama.compat`: its names and signatures.", _split(
        "install Llama LlamaState LlamaGrammar LlamaCache LlamaRAMCache LlamaDiskCache BaseLlamaCache LlamaTokenizer "
        "LlamaHFTokenizer BaseLlamaTokenizer LlamaDraftModel LogitsProcessor LogitsProcessorList StoppingCriteria "
        "StoppingCriteriaList MinTokensLogitsProcessor llama_model_get_vocab llama_token_to_piece", "compat.")),
    Page("errors", "Errors", "Every error that is raised on purpose is one of these.", _split(
        "OxiLlamaError ConfigError LoadError ModelNotFoundError ModelFileError GGUFError MissingKeyError "
        "MissingTensorError UnsupportedModelError QuantError TokenizerError LoraError GenerateError "
        "ContextOverflowError KvCacheFullError QueueFullError DeadlineError EngineClosedError GrammarError "
        "ChatTemplateError TemplateVariableError MessageError ToolError ToolFormatError ToolCallError "
        "ToolArgumentsError ToolFailedError UnknownToolError PackedFileError PickleError SnapshotError "
        "ThreadStartError SnapshotFileError SnapshotFormatError SnapshotDamagedError SnapshotMismatchError")),
)  # fmt: skip


def reference_pages() -> dict[str, str]:
    """Markdown of each page, by its path."""
    found = {f"reference/{page.name}.md": _markdown(page) for page in PAGES}
    rows = [f"| [{page.title}]({page.name}.md) | {page.text} |" for page in PAGES]
    table = "\n".join(["| | |", "|---|---|", *rows])
    head = "# API reference\n\nFrom the docstrings. `import oxillama as ox` has the names that stand alone here.\n\n"
    return {"reference/index.md": f"{head}{table}\n", **found}


def _markdown(page: Page) -> str:
    names = "\n\n".join(f"::: oxillama.{name}" for name in page.names)
    return f"# {page.title}\n\n{page.text}\n\n{names}\n"
