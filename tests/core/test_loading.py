"""From settings to the parts of an engine."""

import pytest

from oxillama.config import EngineConfig
from oxillama.core.loading import load_parts
from oxillama.errors import MissingKeyError
from tests.models.tiny import tiny


def test_a_file_without_a_tokenizer_is_told_the_remedy(tmp_path):
    path = tiny("mamba", tmp_path)
    with pytest.raises(MissingKeyError, match=r"mamba-0\.gguf: .*no tokenizer.*tokenizer\.ggml\.model.*tokenizer_path"):
        load_parts(EngineConfig(model_path=path))
