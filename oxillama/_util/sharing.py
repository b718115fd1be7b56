"""Objects that threads share: which lock protects what, and how weak sets are read without one.

Threads of a program may call one engine at once; a server's requests are prepared by several. No lock is held while
anything is computed, compiled, measured, read or freed, but for those of single sequences, which say so. Each is made
anew in a forked child (`_util/fork.py`), where the thread that held it isn't.

- `_util/owned.py`: a cache's lock protects its entries, sums and index. Values are made, measured and freed outside.
- `_util/pickling.py`: one lock protects which objects are known, and one for each key is held while that is opened.
- `_util/fork.py`: the list of objects of a kind that have a thread. `_util/collector.py`: the count of open pauses.
- `grammar/matcher.py`: a grammar's lock protects its stacks and masks, and is held while a text advances or a mask is
  made. `n_bytes` doesn't wait for it.
- `lora/registry.py`: names, pushed and bound adapters. Adapters are bound outside, and the first one counts.
- `core/step_loop.py`: the lock protects which thread has the turn; the turn itself protects the scheduler, KV cache,
  drafts, metrics and samplers of an engine, which no other thread touches: they post changes (`StepLoop.post`).
  `_parking` lets the loop's own thread sleep.
- `core/session.py`, `compat/llama.py`: one sequence, held during its calls.
- `offload/reader.py`: slots of pages and the calls that wait for them. `speculative/async_draft.py`: the run that is
  under way. `speculative/draft_core.py`: the turn of a draft model.
- `server/log_output.py`: lines that wait to be written, and the thread that writes them. `server/owner_threads.py`:
  calls that wait for a thread, by owner. `server/routes/ollama_pull.py`: how far a transfer is.
- Everything else of `server` but what it computes in other threads belongs to the event loop.

Without a lock: values that are set once (`_util/lazy.py`), `functools.lru_cache`, and dictionaries of which each call
is one step for other threads: get, setdefault, pop, copy, list(d), list(d.values()). An iteration isn't, nor is
list(d.items()), which makes tuples: the collector may run then, and with it other threads.
"""

from collections.abc import Iterable
from typing import TypeVar

__all__ = ["members"]

T = TypeVar("T")


def members(those: Iterable[T]) -> list[T]:
    """Lists the live members of a weak set, or values of a weak dictionary, that other threads may add to and free
    from.

    Python raises RuntimeError if one does in the midst of an iteration; then it begins anew.
    """
    while True:
        try:
            return list(those)
        except RuntimeError:
            continue
