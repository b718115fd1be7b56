"""Families of architectures: each module says what its members are made of, and registers them when it is imported."""

__all__ = ["FAMILIES"]

# The names that each module registers, by which a file imports the one that it needs; a test holds them to be right.
FAMILIES = {
    "llama": "granite granite_swa granitemoe llama nanbeige smollm3",
    "llama4": "llama4",
    "qwen": "qwen qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3vl qwen3vlmoe",
    "gemma": "gemma gemma-embedding gemma2 gemma3",
    "gemma4": "gemma3n gemma4",
    "gpt": "bloom falcon gpt2 gptneox jais2 mpt stablelm starcoder starcoder2",
    "cohere": "cohere2 cohere2moe command-r",
    "olmo": "olmo olmo2 olmoe",
    "phi": "phi2 phi3 phimoe",
    "glm": "chatglm glm4 glm4moe",
    "experts": "dbrx gpt-oss",
    "sparse": "afmoe bailingmoe2 exaone-moe hy_v3 laguna mellum mimo2 minimax-m2 minimax-m3 smallthinker step35",
    "muse": "muse-glimmer",
    "hrm": "hrm_text",
    "mistral": "mistral3",
    "minicpm": "minicpm minicpm3",
    "deci": "deci",
    "bitnet": "bitnet",
    "apertus": "apertus",
    "baichuan": "baichuan",
    "relatives": (
        "arcee codeshell deepseek dots1 ernie4_5 ernie4_5-moe exaone exaone4 hunyuan-dense hunyuan-moe "
        "internlm2 nemotron openelm orion pangu-embedded refact seed_oss xverse"
    ),
    "recurrent": "falcon-h1 granitehybrid jamba lfm2 lfm2moe mamba mamba2 nemotron_h nemotron_h_moe",
    "rwkv": "rwkv7",
    "delta": "qwen35 qwen35moe qwen3next",
    "minimax": "minimax-01",
    "deepseek": "deepseek2 deepseek32 glm-dsa mistral4",
    "kimi": "bailingmoe3 kimi-linear",
    "bert": "bert eurobert jina-bert-v2 jina-bert-v3 llama-embed modern-bert nomic-bert nomic-bert-moe",
    "diffusion": "dream llada llada-moe rnd1",
    "t5": "t5 t5encoder",
    "refused": "",
}
