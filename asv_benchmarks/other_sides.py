"""The runtimes that others.py measures, each in a process of its own: python other_sides.py KIND PATH JSON [--first N].

A process loads its model, computes a little, and then measures once for each line that it is sent: tokens a second of a
prompt and of decoding, as `sides.py` does. With ``--first N`` it loads, computes the first token behind a prompt of N
tokens, and says so at once: the time is taken outside, from the start of the process on.

Every prompt is another one, so that no runtime finds it in a cache. A sequence that ends before it has all its tokens
is an error.
"""

import ctypes
import itertools
import json
import sys
import time
from dataclasses import asdict
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Protocol

import harness
import sides
from sides import Work

N_VOCAB = 128256
N_PROMPTS = itertools.count(5)


class Generator(Protocol):
    """A runtime that generates whole texts."""

    load_seconds: float

    def moments(self, prompts: list[list[int]], n: int) -> list[float]:
        """When generating began, and when the prompts, all of one length, had their first, second ... n-th token."""


class IkLlama(sides.Peer):
    """ik_llama.cpp through the functions that ik-llama-cpp-python binds: an older API of llama.cpp."""

    def __init__(self, path: str, work: Work) -> None:
        c: Any = import_module("ik_llama_cpp._ctypes_api")
        self.quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *message: None)
        c._lib.llama_log_set(self.quiet, None)
        c.llama_backend_init()
        start = time.perf_counter()
        model = c.llama_model_load_from_file(path.encode(), c.llama_model_default_params())
        settings = c.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = work.context * work.sequences, sides.CHUNK, 512
        settings.n_threads = settings.n_threads_batch = work.threads
        settings.n_seq_max = work.sequences
        settings.flash_attn = False  # as ik-llama-cpp-python has it without AVX-VNNI, where an assertion fails
        settings.type_k = settings.type_v = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8}[work.kv_type]
        self.context = model and c.llama_init_from_model(model, settings)
        if not self.context:
            sys.exit(f"ik_llama.cpp can't load {path}")
        self.load_seconds = time.perf_counter() - start
        self.sequences = work.sequences
        self.n_vocab = c.llama_vocab_n_tokens(c.llama_model_get_vocab(model))
        self.batch = c.llama_batch_init(sides.CHUNK, 0, 1)
        self.clear = c.llama_kv_cache_clear
        # It binds no llama_synchronize; on a CPU, llama_decode returns when all is computed.
        self.lib = SimpleNamespace(llama_decode=c.llama_decode, llama_synchronize=lambda context: None)

    def rewind(self, n: int) -> None:
        if n:
            sys.exit("ik_llama.cpp is measured from an empty context on")
        self.clear(self.context)


class OpenVino:
    """OpenVINO GenAI's pipeline of paged attention, which its `LLMPipeline` runs on, a step at a time."""

    def __init__(self, path: str, work: Work) -> None:
        self.genai: Any = import_module("openvino_genai")
        self.tensor: Any = import_module("openvino").Tensor
        settings = self.genai.SchedulerConfig()
        settings.max_num_batched_tokens = sides.CHUNK  # as LLMPipeline, which computes a prompt in one step
        settings.enable_prefix_caching = False
        start = time.perf_counter()
        self.pipeline = self.genai.ContinuousBatchingPipeline(
            path, settings, "CPU", {"INFERENCE_NUM_THREADS": work.threads}
        )
        self.load_seconds = time.perf_counter() - start

    def moments(self, prompts: list[list[int]], n: int) -> list[float]:
        import numpy as np

        settings = self.genai.GenerationConfig(max_new_tokens=n, ignore_eos=True, do_sample=False)
        found = [time.perf_counter()]
        handles = [
            self.pipeline.add_request(i, self.tensor(np.array([prompt], np.int64)), settings)
            for i, prompt in enumerate(prompts)
        ]
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
            found.append(time.perf_counter())
        check({len(handle.read_all()[0].generated_ids) for handle in handles}, n)
        return found


class CTranslate2:
    """CTranslate2's `Generator`, the tokens of whose steps a callback sees."""

    def __init__(self, path: str, work: Work) -> None:
        generator: Any = import_module("ctranslate2").Generator
        start = time.perf_counter()
        self.generator = generator(path, device="cpu", compute_type="int8", inter_threads=1, intra_threads=work.threads)
        self.load_seconds = time.perf_counter() - start

    def moments(self, prompts: list[list[int]], n: int) -> list[float]:
        found = [time.perf_counter()] * (n + 1)

        def note(step: Any) -> bool:
            found[step.step + 1] = time.perf_counter()
            return False

        done = self.generator.generate_batch(
            [[f"w{token}" for token in prompt] for prompt in prompts],
            max_length=n, min_length=n, sampling_topk=1, include_prompt_in_result=False, callback=note,
        )  # fmt: skip
        check({len(result.sequences_ids[0]) for result in done}, n)
        return found


class OrtGenAi:
    """onnxruntime-genai's `Generator`, a token at a time."""

    def __init__(self, path: str, work: Work) -> None:
        self.og: Any = import_module("onnxruntime_genai")
        start = time.perf_counter()
        config = self.og.Config(path)
        threads = {"intra_op_num_threads": work.threads}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": threads}}}))
        self.model = self.og.Model(config)
        self.load_seconds = time.perf_counter() - start

    def moments(self, prompts: list[list[int]], n: int) -> list[float]:
        import numpy as np

        settings = self.og.GeneratorParams(self.model)
        length = len(prompts[0]) + n
        settings.set_search_options(max_length=length, min_length=length, batch_size=len(prompts), do_sample=False)
        generator = self.og.Generator(self.model, settings)
        found = [time.perf_counter()]
        generator.append_tokens(np.array(prompts, np.int32))
        while not generator.is_done():
            generator.generate_next_token()
            found.append(time.perf_counter())
        check({len(generator.get_sequence(i)) for i in range(len(prompts))}, length)
        return found


class Torch:
    """transformers (4.56 or later) on torch in bfloat16, the model called a step at a time with its own cache."""

    def __init__(self, path: str, work: Work) -> None:
        self.torch: Any = import_module("torch")
        models: Any = import_module("transformers").AutoModelForCausalLM
        self.torch.set_num_threads(work.threads)
        start = time.perf_counter()
        self.model = models.from_pretrained(path, dtype=self.torch.bfloat16)
        self.load_seconds = time.perf_counter() - start

    def moments(self, prompts: list[list[int]], n: int) -> list[float]:
        with self.torch.inference_mode():
            given, cache = self.torch.tensor(prompts), import_module("transformers").DynamicCache()
            found = [time.perf_counter()]
            for _ in range(n):
                out = self.model(given, past_key_values=cache, use_cache=True, logits_to_keep=1)
                given, cache = out.logits[:, -1:].argmax(-1), out.past_key_values
                found.append(time.perf_counter())
        check({cache.get_seq_length()}, len(prompts[0]) + n - 1)
        return found


FED: dict[str, Any] = {
    "oxillama": sides.Ours,
    "oxillama, packed": partial(sides.Ours, packed=True),
    "llama.cpp": sides.Peer,
    "ik_llama.cpp": IkLlama,
}
GENERATORS: dict[str, Any] = {
    "OpenVINO": OpenVino,
    "CTranslate2": CTranslate2,
    "onnxruntime-genai": OrtGenAi,
    "torch": Torch,
}


def check(lengths: set[int], n: int) -> None:
    """Every sequence must have all its tokens."""
    if lengths != {n}:
        sys.exit(f"sequences of {sorted(lengths)} tokens instead of {n}")


def a_prompt(n: int) -> list[int]:
    """Tokens that no earlier prompt began with."""
    return sides.tokens(n, N_VOCAB, next(N_PROMPTS))


def generate(side: Generator, work: Work) -> dict[str, float]:
    """Tokens a second, as `sides.measure` has them."""
    speeds = {}
    if work.sequences == 1 and work.prompt:
        began, first = side.moments([a_prompt(work.prompt)], 1)
        speeds["prefill"] = work.prompt / (first - began)
    if work.decode:
        began, first, *_, last = side.moments([a_prompt(1) for _ in range(work.sequences)], work.decode + 1)
        speeds["decode"] = work.sequences * work.decode / (last - first)
    return speeds


def first_token(kind: str, path: str, work: Work, n: int) -> None:
    """Load, and compute one token behind n others."""
    if kind in FED:
        FED[kind](path, work).feed(sides.tokens(n, N_VOCAB, 5), 0)
    else:
        GENERATORS[kind](path, work).moments([a_prompt(n)], 1)
    print("{}", flush=True)


def main() -> None:
    kind, path, settings, *rest = sys.argv[1:]
    work = Work(**json.loads(settings))
    if rest:
        first_token(kind, path, work, int(rest[1]))
        return
    side = (FED | GENERATORS)[kind](path, work)
    measure: Any = sides.measure if kind in FED else generate
    measure(side, Work(**asdict(work) | {"prompt": 64, "decode": 4}))
    harness.serve(
        lambda _: measure(side, work) | {"peak_bytes": sides.peak_bytes()}, {"load_seconds": side.load_seconds}
    )


if __name__ == "__main__":
    main()
