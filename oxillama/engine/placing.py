"""Room for a sequence that was computed elsewhere: ids and counts only."""

from oxillama.engine.holdings import Holdings
from oxillama.engine.sequence import Sequence
from oxillama.kv_cache.prefix import STATE, WINDOWED
from oxillama.kv_cache.state_slots import StateSlots

__all__ = ["place"]


def place(holdings: Holdings, sequence: Sequence, n_computed: int, n_running: int) -> bool:
    """Gives a sequence that has nothing what it would have with its first n_computed tokens computed.

    What belongs there is to be written before anything else is done. False, and it has nothing, if there is too little
    room: each of those that run is to get a block too. Then it is computed as if it were new.
    """
    pool, prefix = holdings.pool, holdings.prefix
    n_gone = holdings.windows.first(n_computed) if holdings.windows else 0
    n_blocks, n_slots = holdings.n_blocks(n_computed), int(pool.n_slots > 0)
    wanted = [(kind, p, n_blocks - (n_gone if kind == WINDOWED else 0)) for kind, p in holdings.groups]
    if any(n + n_running > p.n_available for _, p, n in wanted) or n_slots > pool.slots.n_available:
        return False
    holdings.owns(sequence)
    for kind, p, n in wanted:
        if prefix:
            prefix.evict(kind, n - p.n_free)
        sequence.tables[kind][:] = [-1] * (n_blocks - n) + p.alloc(n)
    if n_slots:
        if prefix:
            prefix.evict(STATE, n_slots - pool.slots.n_free)
        sequence.slots = StateSlots()
        sequence.slots.current = pool.slots.alloc(1)[0]
    sequence.n_computed, sequence.n_gone = n_computed, n_gone if holdings.windows else 0
    return True
