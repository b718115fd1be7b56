"""GLM: "ChatGLM", 2024; the models of April 2025 have norms after the branches too; "GLM-4.5", 2025."""

from oxillama.models.registry import TRANSFORMERS, Architecture, register
from oxillama.models.traits import Traits

GLM4MOE = Traits(rope="neox", ffn_norm="post_attention_norm", qk_norm="some")

register(
    Architecture("glm4", "GLM 4 (0414)", Traits(post_norms=True)),
    Architecture("chatglm", "ChatGLM 3, GLM 4 9B", Traits(), TRANSFORMERS),
    Architecture("glm4moe", "GLM 4.5, 4.5 Air, 4.6, Solar Open", GLM4MOE, TRANSFORMERS),
)
