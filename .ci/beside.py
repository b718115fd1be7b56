"""oxillama beside torch and scikit-learn in one process: python .ci/beside.py before|after

The argument says whether oxillama is imported before the other two or after them. Prints the OpenMP libraries of the
process, the part of a core that idle threads burn, and ratios of times: of one library's work right after the other's
to the same work after its own. Fails if a text changes, or if idle threads don't sleep.
"""

import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

ROUNDS = 15
MOST_IDLE = 0.2  # of a core


def imported(order: str) -> tuple[Any, Any, Any]:
    if order == "before":
        import oxillama
    import sklearn.cluster
    import torch

    if order == "after":
        import oxillama
    return oxillama, torch, sklearn.cluster


def cost(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the clock and of the CPU."""
    clock, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - clock, time.process_time() - cpu


def ratios(work: Callable[[], object], other: Callable[[], object]) -> str:
    """Medians of work after `other` by those of work after itself, in turns."""
    after_itself, after_other = [], []
    for _ in range(ROUNDS):
        work()
        after_itself.append(cost(work))
        other()
        after_other.append(cost(work))
    clock, cpu = (median(t[i] for t in after_other) / median(t[i] for t in after_itself) for i in (0, 1))
    return f"{clock:.2f} of the time, {cpu:.2f} of the CPU time"


def idle(work: Callable[[], object]) -> float:
    """Cores that the process uses in half a second after some work, while its main thread sleeps."""
    work()
    clock, cpu = cost(lambda: time.sleep(0.5))
    return cpu / clock


def main() -> None:
    ox, torch, cluster = imported(sys.argv[1])
    from oxillama.cli.machine import openmp_libraries

    with ox.load() as engine:
        matrix = torch.ones(512, 512)
        points = torch.arange(6000.0).reshape(2000, 3).numpy()
        greedy = ox.SamplerConfig.greedy()

        def ours() -> str:
            return engine.generate("Once upon a time", max_tokens=32, sampler=greedy, cache_prompt=False).text

        def of_torch() -> object:
            return matrix @ matrix @ matrix

        def of_sklearn() -> object:
            return cluster.KMeans(4, n_init=1, max_iter=5, random_state=0).fit(points)

        text, product = ours(), of_torch()
        of_sklearn()
        print(f"oxillama {sys.argv[1]} the others; OpenMP: {', '.join(openmp_libraries()) or 'unknown'}")
        for name, other in (("torch", of_torch), ("scikit-learn", of_sklearn)):
            print(f"oxillama right after {name}: {ratios(ours, other)}")
            print(f"{name} right after oxillama: {ratios(other, ours)}")
        burnt = {name: idle(work) for name, work in (("oxillama", ours), ("torch", of_torch), ("sklearn", of_sklearn))}
        print("cores burnt while idle after " + ", ".join(f"{name}: {part:.2f}" for name, part in burnt.items()))
        assert ours() == text, "another text beside other libraries"
        assert torch.equal(of_torch(), product)
        assert max(burnt.values()) < MOST_IDLE, "idle threads don't sleep"


if __name__ == "__main__":
    main()
