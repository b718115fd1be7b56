"""GLM 4: GLM team, "ChatGLM", 2024; the models of April 2025 have norms after the branches too."""

from oxillama.models.registry import Architecture, register
from oxillama.models.traits import Traits

register(
    Architecture("glm4", "GLM 4 (0414)", Traits(post_norms=True)),
)
