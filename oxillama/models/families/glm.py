"""GLM: "ChatGLM", 2024; the models of April 2025 have norms after the branches too; "GLM-4.5", 2025."""

from dataclasses import replace

from oxillama.gguf import GGUFFile
from oxillama.models.decoder import Decoder
from oxillama.models.registry import TRANSFORMERS, Architecture, register
from oxillama.models.spec import ModelSpec, read_spec
from oxillama.models.traits import Traits
from oxillama.models.weights import Weights


def read_glm4moe(file: GGUFFile, traits: Traits) -> ModelSpec:
    """The last blocks guess tokens further ahead, from what the others have computed: the model is without them."""
    m, spec = file.metadata, read_spec(file, traits)
    n = spec.n_layers - m.get_int(f"{m.arch}.nextn_predict_layers", 0, minimum=0, maximum=spec.n_layers - 1)
    return replace(spec, n_layers=n, layers=spec.layers[:n], states=spec.states[:n])


def build_glm4moe(spec: ModelSpec, traits: Traits, w: Weights, context_size: int) -> Decoder:
    for i in range(spec.n_layers, w.metadata.get_int(f"{spec.arch}.block_count")):
        w.leave_out(f"blk.{i}.")
    return Decoder(spec, traits, w, context_size)


GLM4MOE = Traits(
    rope="neox",
    ffn_norm="post_attention_norm",
    qk_norm="some",
    biased=("q", "k", "v"),
    keys=frozenset({"nextn_predict_layers"}),
)

register(
    Architecture("glm4", "GLM 4 (0414)", Traits(post_norms=True)),
    Architecture("chatglm", "ChatGLM 3, GLM 4 9B", Traits(), TRANSFORMERS),
    Architecture("glm4moe", "GLM 4.5, 4.5 Air, 4.6", GLM4MOE, TRANSFORMERS, build_glm4moe, read_glm4moe),
)
