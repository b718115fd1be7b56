"""Every linear layer, expert, table and output of every architecture, changed: against plain numpy in double."""

import numpy as np
import pytest

from oxillama.core.runner import Runner
from oxillama.kernels.batch import Span
from oxillama.kv_cache.arrays import slot_bytes
from tests.lora.files import merged_file, write_adapter
from tests.lora.loaded import ALPHA, RANK, SCALE, Loaded, adapter_for
from tests.models import naive
from tests.models.references import MODELS, QUANTIZED, path_of, tokens_of


@pytest.mark.sweep(16)
@pytest.mark.parametrize("name", MODELS)
def test_changed_model_agrees_with_merged_weights(name, tmp_path):
    """To what float32 leaves: as for the models themselves, or four times what a pass of the merged weights is off."""
    path, tokens = path_of(name), tokens_of(name)
    adapter, factors = adapter_for(path, tmp_path / "adapter.gguf")
    loaded = Loaded(path)
    loaded.load("a", adapter)
    merged = merged_file(path, tmp_path / "merged.gguf", (factors, SCALE * ALPHA / RANK))
    twin = naive.logits(merged, tokens)
    off = np.abs(loaded.logits(tokens, [("a", SCALE)]) - twin).max()
    merged_off = np.abs(Loaded(merged).logits(tokens) - twin).max()
    assert off <= max(3e-6 * np.abs(twin).max(), 4 * merged_off)
    plain = loaded.logits(tokens)
    assert np.abs(plain - twin).max() > 0.05 * np.abs(twin).max()


# ---- many in one step

# One of each kind of layer: fused products, experts with and without what runs beside them, latent heads, states.
KINDS = [
    "llama",
    "mixtral",
    "qwen2moe",
    "gpt-oss",
    "deepseek2",
    "deepseek3",
    "gpt2",
    "phi3",
    "jamba",
    "lfm2",
    *QUANTIZED,
]
WANTED = {
    "plain": [],
    "a": [("a", 0.7)],
    "b": [("b", -1.0)],
    "a again": [("a", 0.7)],
    "a louder": [("a", 1.5)],
    "both": [("b", 0.5), ("a", 0.25)],
}


@pytest.fixture(scope="module", params=KINDS)
def changed(request, tmp_path_factory):
    folder, path = tmp_path_factory.mktemp("adapters"), path_of(request.param)
    loaded = Loaded(path)
    for i, name in enumerate("ab"):
        loaded.load(name, adapter_for(path, folder / f"{name}.gguf", rank=3 + 2 * i, seed=i)[0])
    return loaded, path, tokens_of(request.param)[:40]


def together(loaded, prompts, chunk, threads):
    """Logits of all positions of prompts with different adapters that share every step."""
    n_blocks, runner = 4, None
    with_slots = bool(slot_bytes(loaded.spec.states))
    runner = Runner(
        loaded.model,
        num_threads=threads,
        kv_type="f32",
        n_blocks=n_blocks * len(prompts),
        n_slots=3 * len(prompts) * with_slots,
    )
    rows = {name: [] for name in prompts}
    longest = max(map(len, prompts.values()))
    for step, start in enumerate(range(0, longest, chunk)):
        spans, names = [], []
        for i, (name, tokens) in enumerate(prompts.items()):
            part = tokens[start : start + chunk]
            slots = (3 * i + (step - 1) % 3 if step else -1, 3 * i + step % 3) if with_slots else None
            if part:
                members = loaded.registry.select(tuple(WANTED[name])).members
                table = list(range(i * n_blocks, (i + 1) * n_blocks))
                spans.append(Span(part, start, table, "all", slots, loras=members))
                names.append(name)
        logits, first = runner.forward(spans).copy(), 0
        for name, span in zip(names, spans, strict=True):
            rows[name].append(logits[first : first + len(span.tokens)])
            first += len(span.tokens)
    return {name: np.concatenate(parts) for name, parts in rows.items()}


@pytest.mark.sweep(7)
@pytest.mark.parametrize(("chunk", "threads"), [(40, 2), (7, 1), (1, 2), (16, 3)])
def test_mixed_steps_give_the_bits_of_each_request_alone(changed, chunk, threads):
    loaded, path, tokens = changed
    prompts = {name: tokens[: len(tokens) - i] for i, name in enumerate(WANTED)}
    found = together(loaded, prompts, chunk, threads)
    untouched = Loaded(path)
    for name, prompt in prompts.items():
        alone = loaded.logits(prompt, WANTED[name])
        assert np.array_equal(found[name], alone), name
        assert np.array_equal(alone, untouched.logits(prompt)) == (name == "plain")


def test_only_what_leaves_the_model_is_changed_alike(changed):
    """The last token's logits of a prompt, beside others that want all or none."""
    loaded, _, tokens = changed
    if slot_bytes(loaded.spec.states):
        pytest.skip("slots are for the test above")
    members = loaded.registry.select((("a", 0.7),)).members
    runner = loaded.runner(20)
    spans = [
        Span(tokens, 0, [0, 1, 2], "none", loras=members),
        Span(tokens[:9], 0, [3], "all"),
        Span(tokens[:30], 0, [4, 5], "last", loras=members),
        Span(tokens[:5], 0, [6], "last", loras=loaded.registry.select((("b", -1.0),)).members),
    ]
    got = runner.forward(spans).copy()
    assert len(got) == 9 + 1 + 1
    assert np.array_equal(got[:9], loaded.logits(tokens[:9]))
    assert np.array_equal(got[9], loaded.logits(tokens[:30], [("a", 0.7)])[-1])
    assert np.array_equal(got[10], loaded.logits(tokens[:5], [("b", -1.0)])[-1])


@pytest.mark.parametrize("name", ["llama", "mixtral", "deepseek2"])
def test_unpacked_weights_give_the_same_bits(name, tmp_path):
    path, tokens = path_of(name), tokens_of(name)
    adapter, _ = adapter_for(path, tmp_path / "adapter.gguf", rank=5)
    found = []
    for repack in (True, False):
        loaded = Loaded(path, repack=repack)
        loaded.load("a", adapter)
        found.append(loaded.logits(tokens, [("a", 1.0)]))
    assert np.array_equal(*found)


def test_formats_of_factors_give_the_bits_of_their_values(tmp_path):
    """F16 stays F16, what fits BF16 becomes that: equal values, equal logits, whatever they are kept in."""
    path, tokens = path_of("llama"), tokens_of("llama")
    _, factors = adapter_for(path, tmp_path / "adapter.gguf")
    for dtype, held in ((np.float16, 2), (np.float32, 4)):
        rounded = {name: tuple(f.astype(np.float16).astype(dtype) for f in pair) for name, pair in factors.items()}
        kept = Loaded(path)
        kept.load("a", write_adapter(tmp_path / "kept.gguf", "llama", rounded, dtype=dtype))
        assert kept.registry.nbytes > 0
        if held == 2:
            first = kept.logits(tokens, [("a", 1.0)])
        else:
            assert np.array_equal(first, kept.logits(tokens, [("a", 1.0)]))


def test_scale_zero_is_no_adapter(changed):
    loaded, _, _ = changed
    assert loaded.registry.select((("a", 0.0),)).key == ()
    assert loaded.registry.select((("a", 1e-60),)).key == ()


def test_order_and_repetition_say_nothing(changed):
    loaded, _, _ = changed
    one = loaded.registry.select((("a", 0.25), ("b", 0.5), ("a", 0.5)))
    other = loaded.registry.select((("b", 0.5), ("a", 0.75)))
    assert one.key == other.key
    assert [id(c) for c, _ in one.members] == [id(c) for c, _ in other.members]
