"""Mixtures of experts: what metadata say about them, and the layer."""

from __future__ import annotations

from dataclasses import dataclass

from oxillama.errors import LoadError, MissingTensorError, UnsupportedModelError
from oxillama.gguf import Metadata
from oxillama.kernels.batch import Batch
from oxillama.kernels.experts import expert_add_, expert_hidden, expert_hidden_joint
from oxillama.kernels.matmul import linear
from oxillama.kernels.matrix import Matrix
from oxillama.kernels.routing import Routing, route
from oxillama.kernels.rows import Rows, Vector, gate_sigmoid_, zeros
from oxillama.models.layers import FeedForward, Residual
from oxillama.models.weights import Weights

MAX_EXPERTS = 1 << 12
MAX_WIDTH = 1 << 24
MAX_LAYERS = 1 << 12

GATINGS = {1: "softmax", 2: "sigmoid", 3: "softmax_chosen"}


@dataclass(frozen=True)
class ExpertDefaults:
    """Defaults of an architecture where its metadata are silent.

    ``shared_gate``: what shared experts give is gated as a whole. ``shared_average``: the layer's output is the mean of
    what they and the others give. ``gated``: experts have a gate. ``biased``: router and experts have biases.
    ``correction``: the tensor that is added to scores for choosing. ``n_shared``: shared experts. ``weighs_input``: see
    `weighed_input.py`.
    """

    gating: str = "softmax"
    normalise: bool = True
    activation: str = "silu"
    shared_gate: bool = False
    shared_average: bool = False
    gated: bool = True
    biased: bool = False
    correction: str = "exp_probs_b.bias"
    n_shared: int = 0
    weighs_input: bool = False


# As llama.cpp computes files without these keys. The converters of most architectures write none of them.
DEFAULTS = {
    "afmoe": ExpertDefaults(gating="sigmoid", normalise=False),
    "bailingmoe2": ExpertDefaults(gating="sigmoid", normalise=False),
    "bailingmoe3": ExpertDefaults(gating="sigmoid", normalise=False),
    "cohere2moe": ExpertDefaults(gating="sigmoid", normalise=False, shared_average=True),
    "deepseek": ExpertDefaults(normalise=False),
    "deepseek2": ExpertDefaults(normalise=False),
    "deepseek32": ExpertDefaults(gating="sigmoid", normalise=False),
    "dots1": ExpertDefaults(gating="sigmoid", normalise=False),
    "exaone-moe": ExpertDefaults(gating="sigmoid", normalise=False),
    "gemma4": ExpertDefaults(activation="gelu"),
    "glm-dsa": ExpertDefaults(gating="sigmoid", normalise=False),
    "glm4moe": ExpertDefaults(gating="sigmoid", normalise=False),
    "gpt-oss": ExpertDefaults(gating="softmax_chosen", normalise=False, activation="swiglu_oai", biased=True),
    "hy_v3": ExpertDefaults(gating="sigmoid", normalise=False, correction="exp_probs_b"),
    "jamba": ExpertDefaults(normalise=False),
    "kimi-linear": ExpertDefaults(gating="sigmoid"),
    "laguna": ExpertDefaults(gating="sigmoid", normalise=False),
    "lfm2moe": ExpertDefaults(gating="sigmoid"),
    "llada-moe": ExpertDefaults(normalise=False),
    "llama4": ExpertDefaults(gating="sigmoid", normalise=False, n_shared=1, weighs_input=True),
    "mimo2": ExpertDefaults(gating="sigmoid"),
    "minimax-m2": ExpertDefaults(gating="sigmoid"),
    "minimax-m3": ExpertDefaults(gating="sigmoid", activation="swiglu_oai"),
    "mistral4": ExpertDefaults(normalise=False),
    "nemotron_h_moe": ExpertDefaults(gating="sigmoid", normalise=False, activation="relu2", gated=False),
    "nomic-bert-moe": ExpertDefaults(normalise=False, activation="gelu_erf", gated=False),
    "olmoe": ExpertDefaults(normalise=False),
    "phimoe": ExpertDefaults(gating="sparsemixer", normalise=False),
    "qwen2moe": ExpertDefaults(normalise=False, shared_gate=True),
    "qwen35moe": ExpertDefaults(shared_gate=True),
    "qwen3next": ExpertDefaults(shared_gate=True),
    "smallthinker": ExpertDefaults(gating="sigmoid", activation="relu"),
    "step35": ExpertDefaults(gating="sigmoid", normalise=False),
}


@dataclass(frozen=True)
class ExpertSpec:
    """A mixture of experts: ``n_used`` of ``n_experts`` per token, each ``n_ff`` wide.

    ``n_ff_shared`` is the width of all ``n_shared`` shared experts together, 0 without. ``gating``: how logits become
    scores, see :func:`oxillama.kernels.routing.route`. ``scale`` multiplies the weights. Experts stand in ``n_groups``
    groups of equal size, of which ``n_groups_used`` are looked into. The first ``n_dense_first`` layers have none, of
    the others every ``step``-th. ``limits``: bounds of what an expert's two matrices give, by layer, 0 for none;
    ``shared_limits``: of the shared ones and of dense layers. ``n_latent``: width of what experts read and write,
    0: the model's. The rest as in `ExpertDefaults`.
    """

    n_experts: int
    n_used: int
    n_ff: int
    n_ff_shared: int
    normalise: bool
    n_shared: int = 0
    gating: str = "softmax"
    scale: float = 1.0
    n_groups: int = 1
    n_groups_used: int = 1
    n_dense_first: int = 0
    step: int = 1
    activation: str = "silu"
    shared_gate: bool = False
    shared_average: bool = False
    gated: bool = True
    biased: bool = False
    correction: str = "exp_probs_b.bias"
    weighs_input: bool = False
    n_latent: int = 0
    limits: tuple[float, ...] = ()
    shared_limits: tuple[float, ...] = ()

    def in_layer(self, i: int) -> bool:
        """Whether metadata put experts into layer ``i``; Jamba's don't say, and put them into all."""
        return i >= self.n_dense_first and (i + 1) % self.step == 0


def read_experts(m: Metadata, arch: str) -> ExpertSpec | None:
    """Reads what metadata say, or None for a model without experts.

    LoadError or one of its children names the key and the values that contradict each other.
    """
    n = m.get_int(f"{arch}.expert_count", 0, minimum=0, maximum=MAX_EXPERTS)
    if n == 0:
        return None
    defaults = DEFAULTS.get(arch, ExpertDefaults())
    n_used = m.get_int(f"{arch}.expert_used_count", minimum=1, maximum=n)
    n_ff = _width(m, f"{arch}.expert_feed_forward_length", f"{arch}.feed_forward_length")
    n_shared = m.get_int(f"{arch}.expert_shared_count", defaults.n_shared, minimum=0, maximum=MAX_EXPERTS)
    if defaults.weighs_input and n_used != 1:
        raise UnsupportedModelError(f"{arch}.expert_used_count is {n_used}; {arch} is only computed with 1")
    n_groups, n_groups_used = _groups(m, arch, n, n_used)
    return ExpertSpec(
        n_experts=n,
        n_used=n_used,
        n_ff=n_ff,
        n_ff_shared=_shared_width(m, arch, n_shared, n_ff),
        normalise=m.get_bool(f"{arch}.expert_weights_norm", defaults.normalise),
        n_shared=n_shared,
        gating=_gating(m, arch, n_used, defaults.gating),
        scale=m.get_float(f"{arch}.expert_weights_scale", 0.0, minimum=0.0, maximum=1e6) or 1.0,
        n_groups=n_groups,
        n_groups_used=n_groups_used,
        n_dense_first=m.get_int(f"{arch}.leading_dense_block_count", 0, minimum=0, maximum=1 << 12),
        step=m.get_int(f"{arch}.interleave_moe_layer_step", 1, minimum=1, maximum=1 << 12),
        activation=defaults.activation,
        shared_gate=defaults.shared_gate,
        shared_average=defaults.shared_average,
        gated=defaults.gated,
        biased=defaults.biased,
        n_latent=m.get_int(f"{arch}.moe_latent_size", 0, minimum=0, maximum=1 << 20),
        correction=defaults.correction,
        weighs_input=defaults.weighs_input,
    )


def _width(m: Metadata, own: str, common: str) -> int:
    """The width of an expert, which may stand once or once per layer; then all layers that have it agree."""
    key = own if own in m and m[own] != 0 else common
    if key in m and not isinstance(m[key], int):
        array = m.get_array(key, int)
        if len(array) > MAX_LAYERS:
            raise LoadError(f"{key} has {len(array)} values; no model has more than {MAX_LAYERS} layers")
        values = set(array)
        if len(values) != 1:
            some = sorted(values)[:5]
            raise UnsupportedModelError(f"{key} differs between layers, whose experts it measures: {some}")
        value = int(values.pop())
        if not 1 <= value <= MAX_WIDTH:
            raise LoadError(f"{key} is {value}; it must lie in 1..{MAX_WIDTH}")
        return value
    return m.get_int(key, minimum=1, maximum=MAX_WIDTH)


def _shared_width(m: Metadata, arch: str, n_shared: int, n_ff: int) -> int:
    """Width of all shared experts together: its own key, or so many as wide as any; Qwen2's is as wide as a dense
    layer."""
    key, dense = f"{arch}.expert_shared_feed_forward_length", f"{arch}.feed_forward_length"
    default = n_shared * n_ff
    if arch == "qwen2moe" and key not in m:
        default = _width(m, dense, dense)
    if default > MAX_WIDTH:
        raise LoadError(f"{arch}.expert_shared_count is {n_shared}: experts of {n_ff} values are too wide together")
    return m.get_int(key, default, minimum=0, maximum=MAX_WIDTH)


def _gating(m: Metadata, arch: str, n_used: int, default: str) -> str:
    key = f"{arch}.expert_gating_func"
    code = m.get_int(key, 0)
    if code and code not in GATINGS:
        known = ", ".join(f"{k} ({v})" for k, v in GATINGS.items())
        raise UnsupportedModelError(f"{key} is {code}, which is not supported; supported: {known}")
    gating = GATINGS.get(code, default)
    if gating == "sparsemixer" and n_used != 2:
        raise UnsupportedModelError(f"{arch}.expert_used_count is {n_used}; {arch} is only defined for 2")
    return gating


def _groups(m: Metadata, arch: str, n: int, n_used: int) -> tuple[int, int]:
    """Groups of experts and how many of them are looked into; one where there are none."""
    count, used = f"{arch}.expert_group_count", f"{arch}.expert_group_used_count"
    n_groups = m.get_int(count, 0, minimum=0, maximum=MAX_EXPERTS) or 1
    n_groups_used = m.get_int(used, 0, minimum=0, maximum=MAX_EXPERTS) or n_groups
    if n % n_groups:
        raise LoadError(f"{count} is {n_groups}, which does not divide expert_count {n}")
    if n_groups_used > n_groups:
        raise LoadError(f"{used} is {n_groups_used}, but {count} is {n_groups}")
    within = n // n_groups * n_groups_used
    if n_used > within:
        raise LoadError(f"{arch}.expert_used_count is {n_used}, but {used} {n_groups_used} leaves {within} experts")
    return n_groups, n_groups_used


class Experts:
    """Each row's share of the experts that its router chose, and of what runs beside them.

    ``shared``: what runs beside them, whose own residual adds its output as it is.
    """

    def __init__(
        self,
        n_embd: int,
        spec: ExpertSpec,
        w: Weights,
        prefix: str,
        *,
        residual: Residual,
        shared: FeedForward | None = None,
        limit: float = 0.0,
    ) -> None:
        n, n_ff = spec.n_experts, spec.n_ff
        self.spec, self.shared, self.residual, self.limit = spec, shared, residual, limit
        self.router = w.linear(prefix + "ffn_gate_inp", n, n_embd, bias=spec.biased)
        self.choice_bias = w.optional_vector(prefix + spec.correction, n)
        width, joint = spec.n_latent or n_embd, prefix + "ffn_gate_up_exps"
        self.gate = None
        self.joint = f"{joint}.weight" in w  # each expert's gate, below it its other matrix
        if self.joint:
            check_joint(spec, joint, limit)
            self.up = w.matrix(f"{joint}.weight", n, 2 * n_ff, width)
        else:
            if spec.gated:
                check_gate(w, prefix)
                self.gate = expert_matrix(w, prefix + "ffn_gate_exps", n, n_ff, width, spec.biased)
            self.up = expert_matrix(w, prefix + "ffn_up_exps", n, n_ff, width, spec.biased)
        self.down = expert_matrix(w, prefix + "ffn_down_exps", n, width, n_ff, spec.biased)
        has_gate = shared is not None and spec.shared_gate
        self.shared_gate = w.matrix(prefix + "ffn_gate_inp_shexp.weight", 1, n_embd) if has_gate else None
        self.codes = self.up.integer

    def add_to(self, x: Rows, h: Rows, batch: Batch) -> None:
        self.add_routed(x, h, self.route(h, batch), batch)

    def hidden(self, h: Rows, routing: Routing, batch: Batch) -> Rows:
        if self.joint:
            return expert_hidden_joint(h, routing, self.up, self.spec.activation, batch)
        codes = self.down.integer
        return expert_hidden(h, routing, self.gate, self.up, self.spec.activation, codes, self.limit, batch)

    def add_routed(self, x: Rows, h: Rows, routing: Routing, batch: Batch) -> None:
        """`add_to` with experts that were chosen before."""
        hidden = self.hidden(h, routing, batch)
        if self.shared is None and self.residual.plain:
            expert_add_(x, hidden, routing, self.down, batch)
            return
        y = zeros(x.workspace, x.n, x.dim)
        if self.shared is not None:
            self.shared.add_to(y, h, batch)
            if self.shared_gate is not None:
                gate_sigmoid_(y, linear(h, self.shared_gate, batch))
        expert_add_(y, hidden, routing, self.down, batch)
        self.residual.add(x, y)

    def route(self, h: Rows, batch: Batch) -> Routing:
        """Experts that each row of ``h`` uses."""
        s = self.spec
        return route(
            linear(h, self.router, batch),
            s.n_used,
            gating=s.gating,
            normalise=s.normalise,
            scale=s.scale,
            bias=self.choice_bias,
            n_groups=s.n_groups,
            n_groups_used=s.n_groups_used,
        )


class LatentExperts(Experts):
    """Experts of a narrower stream; the router sees the wide one. NVIDIA, "Nemotron 3", 2025."""

    def __init__(
        self,
        n_embd: int,
        spec: ExpertSpec,
        w: Weights,
        prefix: str,
        *,
        residual: Residual,
        shared: FeedForward | None = None,
        limit: float = 0.0,
    ) -> None:
        super().__init__(n_embd, spec, w, prefix, residual=residual, shared=shared, limit=limit)
        self.narrow = w.linear(prefix + "ffn_latent_down", spec.n_latent, n_embd)
        self.wide = w.linear(prefix + "ffn_latent_up", n_embd, spec.n_latent)

    def add_routed(self, x: Rows, h: Rows, routing: Routing, batch: Batch) -> None:
        latent = zeros(x.workspace, x.n, self.spec.n_latent)
        hidden = self.hidden(linear(h, self.narrow, batch), routing, batch)
        expert_add_(latent, hidden, routing, self.down, batch)
        y = linear(latent, self.wide, batch)
        if self.shared is not None:
            self.shared.add_to(y, h, batch)
        self.residual.add(x, y)


def check_gate(w: Weights, prefix: str) -> None:
    gate = f"{prefix}ffn_gate_exps.weight"
    if gate not in w:
        raise MissingTensorError(f"tensor {gate} is missing, and so is {prefix}ffn_gate_up_exps.weight")


def check_joint(spec: ExpertSpec, name: str, limit: float) -> None:
    """Raises UnsupportedModelError for what is not computed with both matrices in one."""
    if not spec.gated or spec.biased or limit or spec.activation == "swiglu_oai":
        raise UnsupportedModelError(
            f"tensor {name}.weight: the experts of this architecture have no gate in one matrix"
        )


def expert_matrix(w: Weights, name: str, n: int, n_out: int, n_in: int, biased: bool) -> Matrix:
    """A stack of the experts' matrices, with their biases, which may be missing unless they belong to the model."""
    bias = None
    if biased or w.has(f"{name}.bias"):
        bias = Vector(w.values(f"{name}.bias", n, n_out))
    return w.matrix(f"{name}.weight", n, n_out, n_in, bias=bias)
