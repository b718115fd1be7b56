"""Memory of the paged cache against sizes worked out by hand."""

import pytest

from oxillama.errors import ConfigError, KvCacheFullError
from oxillama.kv_cache.paged import KvShape, PagedKvCache


@pytest.mark.parametrize(
    ("kv_type", "head_dim", "v_head_dim", "per_token"),
    [
        ("f32", 64, None, 512),
        ("f16", 64, None, 256),
        ("q8_0", 64, None, 136),
        ("f32", 20, None, 4 * (20 + 32)),
        ("q8_0", 20, None, 34 + 34),
        ("f16", 192, 128, 2 * (192 + 128)),
        ("q8_0", 576, 512, (18 + 16) * 34),
    ],
)
def test_block_bytes(kv_type, head_dim, v_head_dim, per_token):
    shape = KvShape(3, 2, head_dim, 32, kv_type, v_head_dim)
    assert shape.block_bytes == 3 * 2 * 32 * per_token
    cache = PagedKvCache(shape, 5)
    assert cache.memory_bytes == 5 * shape.block_bytes == sum(s.k.nbytes + s.v.nbytes for s in cache.slabs)
    assert all(s.k.ctypes.data % 64 == s.v.ctypes.data % 64 == 0 for s in cache.slabs)


def test_what_can_not_be_had_is_refused():
    with pytest.raises(KvCacheFullError, match="lower kv_budget"):
        PagedKvCache(KvShape(1, 1 << 20, 1 << 15, 64, "f32"), 1 << 28)
    with pytest.raises(ConfigError, match="q4"):
        _ = KvShape(1, 1, 16, 16, "q4").block_bytes
