"""Snapshots of an engine for coroutines."""

import asyncio

import pytest

import oxillama as ox
from oxillama.errors import SnapshotFormatError
from tests.snapshot.models import load, path_of, same, tokens_of, told

OPTIONS = {"max_tokens": 20, "seed": 5, "repetition_penalty": 1.1, "ignore_eos": True}


def test_async_requests_resume_with_the_same_text(tmp_path):
    async def main():
        async with ox.AsyncEngine(load("llama")) as engine, ox.AsyncEngine(load("llama", num_threads=2)) as other:
            prompt = tokens_of(engine.engine, 20)
            whole = told([chunk async for chunk in engine.stream(prompt, **OPTIONS)])
            for k in range(len(whole) + 1):
                stream = engine.stream(prompt, **OPTIONS)
                first = [await anext(stream) for _ in range(k)]
                if k % 2:
                    saved = tmp_path / "text"
                    assert await stream.snapshot(saved) is None
                else:
                    saved = await stream.snapshot()
                rest = [chunk async for chunk in await other.resume(saved)]
                assert told(first + rest) == whole
                assert told(first + [chunk async for chunk in stream]) == whole
            several = engine.stream(prompt, n=2, **OPTIONS)
            together = [chunk async for chunk in await other.resume(await several.snapshot_bytes())]
            assert sorted(c.index for c in together if c.finish_reason) == [0, 1]
            found = await asyncio.gather(*(several.snapshot(index=i) for i in range(2)))
            again = [[chunk async for chunk in await other.resume(data)] for data in found]
            assert [told(chunks)[-1][2] for chunks in again] == ["length", "length"]
            await several.aclose()
            never = engine.stream(prompt)
            await never.aclose()
            with pytest.raises(ox.SnapshotError, match="left before it began"):
                await never.snapshot()

    asyncio.run(main())


def test_sessions_of_async_engines_resume(tmp_path):
    async def main():
        with load("llama") as plain:
            row = plain.prefill([1, 2, 3])
            engine = ox.AsyncEngine(plain)
            await engine.snapshot(tmp_path / "session")
            data = await engine.snapshot_bytes(compress=False)
            assert (tmp_path / "session").read_bytes() == data
            for restored in (
                await ox.AsyncEngine.restore(tmp_path / "session", num_threads=2),
                await ox.AsyncEngine.restore_bytes(data, path_of("llama")),
            ):
                assert isinstance(restored, ox.AsyncEngine)
                assert same(restored.engine.logits, row)
                await restored.close()
            with pytest.raises(SnapshotFormatError, match=r"resume it with Engine\.resume"):
                await engine.resume(data)

    asyncio.run(main())


def test_async_requests_with_drafts_resume_with_the_same_text():
    async def main():
        async with ox.AsyncEngine(load("llama")) as engine:
            draft = ox.DraftModel(path_of("llama"), num_threads=1)
            options = OPTIONS | {"draft": draft, "acceptance": "rejection"}
            prompt = tokens_of(engine.engine, 20)
            whole = told([chunk async for chunk in engine.stream(prompt, **options)])
            stream = engine.stream(prompt, **options)
            first = [await anext(stream) for _ in range(4)]
            saved = await stream.snapshot()
            await stream.aclose()
            assert told(first + [chunk async for chunk in await engine.resume(saved, draft=draft)]) == whole
            # A stream for coroutines may be finished by now, and needs no draft then; a plain one goes on when read.
            chunks = engine.engine.stream(prompt, **options)
            next(chunks)
            with pytest.raises(ox.SnapshotError, match="give draft="):
                await engine.resume(chunks.snapshot_bytes())
            chunks.close()

    asyncio.run(main())
