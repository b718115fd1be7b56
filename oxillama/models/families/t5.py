"""T5 and its relatives (Raffel et al., 2020): T5 1.1, Flan-T5, mT5, UMT5."""

from dataclasses import replace

from oxillama.models.encoder_decoder import EncoderDecoder, read_encoder_decoder
from oxillama.models.registry import Architecture, register
from oxillama.models.t5 import Encoder, read_t5_encoder
from oxillama.models.traits import Traits

T5 = Traits(rope="none", activation="gelu")
ENCODER = replace(T5, causal=False)

register(
    Architecture("t5", "T5, Flan-T5, mT5, UMT5", T5, build=EncoderDecoder, read_spec=read_encoder_decoder),
    Architecture("t5encoder", "encoders of T5, Flan-T5, mT5, UMT5", ENCODER, build=Encoder, read_spec=read_t5_encoder),
)
