"""Diffusion models: Llama, Qwen 2 and Qwen 3 MoE without a direction. See `denoiser.py`."""

from dataclasses import replace

from oxillama.models.denoiser import Denoiser, read_denoiser
from oxillama.models.families.qwen import QWEN2, QWEN3
from oxillama.models.registry import UNVERIFIED, Architecture, register
from oxillama.models.traits import Traits

LLADA = Traits(causal=False)
DREAM, RND1 = (replace(traits, causal=False) for traits in (QWEN2, QWEN3))

register(
    Architecture("llada", "LLaDA 8B, 1.5", LLADA, build=Denoiser, read_spec=read_denoiser),
    Architecture("llada-moe", "LLaDA-MoE 7B-A1B", RND1, UNVERIFIED, Denoiser, read_denoiser),
    Architecture("dream", "Dream 7B, Dream-Coder", DREAM, build=Denoiser, read_spec=read_denoiser),
    Architecture("rnd1", "RND1 30B", RND1, build=Denoiser, read_spec=read_denoiser),
)
