"""Names of models: what means which model of the Hub, and what is refused before a network is asked."""

import contextlib

import pytest

from oxillama.errors import ConfigError
from oxillama.store.library import hub_name_of, is_library_like
from oxillama.store.names import HubName, is_hub_like, is_path, read_hub_name

FILE = "Llama-3.2-1B-Instruct-Q4_K_M.gguf"
REPO = "bartowski/Llama-3.2-1B-Instruct-GGUF"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (f"hf:{REPO}", HubName(REPO)),
        (f"HF:{REPO}/", HubName(REPO)),
        (f"hf:{REPO}:latest", HubName(REPO)),
        (f"hf:{REPO}:q8_0", HubName(REPO, None, "Q8_0")),
        (f"hf:{REPO}:ud-q4_k_xl", HubName(REPO, None, "UD-Q4_K_XL")),
        (f"hf:{REPO}:Q4_K", HubName(REPO, None, "Q4_K_M")),
        (f"hf:{REPO}:fp16", HubName(REPO, None, "F16")),
        (f"hf:{REPO}/{FILE}", HubName(REPO, FILE)),
        (f"hf:{REPO}/Q8_0/{FILE}", HubName(REPO, f"Q8_0/{FILE}")),
        (f"hf:{REPO}:{FILE}", HubName(REPO, FILE)),
        (f"hf:{REPO}/a@b.gguf", HubName(REPO, "a@b.gguf")),
        (f"hf:{REPO}@v1:Q8_0", None),
        (f"hf:{REPO}:Q8_0@refs/pr/1", HubName(REPO, None, "Q8_0", "refs/pr/1")),
        (f"https://huggingface.co/{REPO}", HubName(REPO)),
        (f"http://www.huggingface.co/{REPO}/", HubName(REPO)),
        (f"huggingface.co/{REPO}", HubName(REPO)),
        (f"hf.co/{REPO}:Q8_0", HubName(REPO, None, "Q8_0")),
        (f"hf:https://hf.co/{REPO}", HubName(REPO)),
        (f"https://huggingface.co/{REPO}/tree/main", HubName(REPO)),
        (f"https://huggingface.co/{REPO}/tree/main/UD-Q4_K_XL", HubName(REPO, None, "UD-Q4_K_XL")),
        (f"https://huggingface.co/{REPO}/blob/main/{FILE}", HubName(REPO, FILE)),
        (
            f"https://huggingface.co/{REPO}/resolve/v2/a%20b/{FILE}?download=true",
            HubName(REPO, f"a b/{FILE}", None, "v2"),
        ),
        (f"https://huggingface.co/{REPO}/resolve/main/%C3%A9.gguf", HubName(REPO, "é.gguf")),
        ("model.gguf", None),
        (REPO, None),
        ("llama3.2", None),
        ("/models/a.gguf", None),
        ("~/a.gguf", None),
    ],
)
def test_names_of_the_hub(given, found):
    if found is None and given.startswith("hf:"):
        with pytest.raises(ConfigError, match="branch, tag or commit, not"):
            read_hub_name(given)
    else:
        assert read_hub_name(given) == found


@pytest.mark.parametrize("name", [HubName(REPO), HubName(REPO, FILE), HubName(REPO, None, "Q8_0")])
def test_a_name_is_read_as_it_is_written(name):
    assert read_hub_name(str(name)) == name


def test_without_its_mark():
    assert read_hub_name(REPO, bare=True) == HubName(REPO)
    assert read_hub_name(f"{REPO}:Q8_0", bare=True) == HubName(REPO, None, "Q8_0")
    assert read_hub_name("./a/b", bare=True) is None
    assert read_hub_name("model", bare=True) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("hf:", "must be hf:OWNER/REPO"),
        ("hf:owner", "must be hf:OWNER/REPO"),
        ("hf:owner/", "must be hf:OWNER/REPO"),
        ("hf:/repo", "must be hf:OWNER/REPO"),
        ("hf:owner//a.gguf", "must be hf:OWNER/REPO"),
        ("hf:owner/repo:", "must be hf:OWNER/REPO"),
        ("hf:owner/repo@", "must be hf:OWNER/REPO"),
        ("hf:owner/repo:huge", "'huge' is no quantisation"),
        ("hf:owner/repo/a.bin", "ends in .gguf"),
        ("hf:owner/../a.gguf", "repo_id must be 'owner/name'"),
        ("hf:../../etc/passwd.gguf", "repo_id must be 'owner/name'"),
        ("hf:owner/repo/../a.gguf", "filename must be a file's path"),
        ("hf:owner/repo/..%2fa\\b.gguf", "filename must be a file's path"),
        ("hf:owner/repo/a\0.gguf", "filename must be a file's path"),
        ("hf:owner/repo\0/a.gguf", "repo_id must be"),
        ("hf:owner/repo:Q4\0", "must be hf:OWNER/REPO"),
        ("hf:owner/repo/a\x1b[31m.gguf", "filename must be a file's path"),
        ("hf:owner/" + "r" * 97, "repo_id must be"),
        ("hf:owner/repo/" + "f" * 256 + ".gguf", "filename must be a file's path"),
        ("hf:" + "x" * 5000, "at most 4096 characters"),
        ("hf:owner/repo@../../x", "branch, tag or commit, not"),
        ("hf:owner/repo@a b", "branch, tag or commit, not"),
        ("https://example.org/owner/repo", "an address of the Hugging Face Hub"),
        ("https://huggingface.co.example.org/owner/repo", "an address of the Hugging Face Hub"),
        ("https://huggingface.co@example.org/owner/repo", "an address of the Hugging Face Hub"),
        ("https://huggingface.co/owner", "the address of a repository"),
        ("https://huggingface.co/datasets/owner/repo", "the address of a repository"),
        ("https://huggingface.co/owner/repo/discussions/1", "the address of a repository"),
        ("https://huggingface.co/owner/repo/blob/main/README.md", "the address of a GGUF file"),
        ("https://huggingface.co/owner/repo/resolve/main/%2e%2e/%2e%2e/a.gguf", "filename must be a file's path"),
        ("https://[::1/owner/repo", "is no address"),
    ],
)
def test_names_that_can_be_none(given, message):
    with pytest.raises(ConfigError, match=message) as caught:
        read_hub_name(given, "NAME")
    assert str(caught.value).startswith("NAME ")
    assert "\0" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_long_names_take_no_longer_than_their_length():
    """The square of a million steps would have no end."""
    for given in (
        "hf:" + "a/" * 100_000,
        "https://hf.co/" + "%2e" * 100_000,
        "a" * 1_000_000,
        "hf:o/r:" + "Q4_" * 1000,
    ):
        for read in (read_hub_name, is_path, is_hub_like, is_library_like, hub_name_of):
            with contextlib.suppress(ConfigError):
                read(given)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("llama3.2", True), ("llama3.2:1b", True), ("qwen2.5-coder:7b-instruct-q4_K_M", True), ("mistral", True),
        ("phi4", True), ("phi", False), ("gemma", True), ("library/llama3", True), ("nomic-embed-text", True),
        ("something:latest", True), ("thing:8b", True), ("Mistral", False), ("hello", False), ("and/or", False),
        ("Note:", False), ("key:value", False), ("mistrals", False), ("yi", False), ("yi:34b", True), ("", False),
        ("solar", False), ("12:30", False),
    ],
)  # fmt: skip
def test_habits_of_ollama(text, found):
    assert is_library_like(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [("o/r:Q4_K_M", True), ("o/r:latest", True), ("o/r:a.gguf", True), ("o/Model-GGUF", True), ("and/or", False),
     ("o/r", False), ("a/b/c:Q8_0", False), ("http://x", False), ("1/2:3", False)],
)  # fmt: skip
def test_names_of_the_hub_without_their_mark(text, found):
    assert is_hub_like(text) == found


def test_models_of_the_library_that_the_hub_has():
    assert hub_name_of("llama3.2") == "hf:bartowski/Llama-3.2-3B-Instruct-GGUF"
    assert hub_name_of("library/Llama3.2:1b") == "hf:bartowski/Llama-3.2-1B-Instruct-GGUF"
    assert hub_name_of("qwen3:8b:latest") == "hf:Qwen/Qwen3-8B-GGUF"
    assert hub_name_of("unheard-of") is None
