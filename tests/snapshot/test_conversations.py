"""Conversations resume in another engine, with their computed tokens."""

import pytest

import oxillama as ox
from oxillama.errors import SnapshotError, SnapshotMismatchError
from tests.fakes import session_of
from tests.snapshot.models import load, tokens_of, told
from tests.snapshot.served import options, say


@pytest.mark.parametrize("name", ["llama", "jamba", "gemma3", "mamba2", "q8_0", "q4_0"])
def test_a_resumed_conversation_computes_only_new_tokens(name, tmp_path):
    model, fields = ("llama", {"kv_type": name}) if name in ("q8_0", "q4_0") else (name, {})
    with load(model, **fields) as engine, load(model, num_threads=2, **fields) as other:
        said, talk = tokens_of(engine, 20), engine.conversation()
        for turn in range(3):
            said = say(talk, said, seed=turn)
            talk.messages.append({"role": "assistant", "content": f"é {turn}"})
            talk.snapshot(tmp_path / "talk", shared=turn == 1)
            assert ox.snapshot.snapshot_info(tmp_path / "talk").kind == "conversation"
            again = other.resume(tmp_path / "talk")
            assert (again.tokens, again.messages, again.n_computed) == (said, talk.messages, len(said) - 1)
            before = other.metrics_snapshot().prefill_tokens
            question = [*said, 5, 6]
            answer = say(again, question, seed=9)
            assert other.metrics_snapshot().prefill_tokens - before == 3  # the rest was there
            assert answer == say(engine.conversation(), question, seed=9)
            again.close()
            said += [5, 6]


def test_restored_blocks_are_not_in_the_prefix_cache():
    with load("llama", prefix_cache=True) as engine, load("llama", prefix_cache=True) as other:
        said = say(engine.conversation(), tokens_of(engine, 80))
        talk = engine.conversation()
        said = say(talk, said)
        again = other.resume(talk.snapshot_bytes())
        more = say(again, [*said, 7])
        again.close()
        before = other.metrics_snapshot().prefill_tokens
        other.generate(more, max_tokens=1)
        assert other.metrics_snapshot().prefill_tokens - before == len(more)


def test_a_conversation_with_an_answer_in_progress():
    with load("llama") as engine, load("llama", num_threads=2) as other:
        prompt, talk = tokens_of(engine, 20), engine.conversation()
        whole = told(engine.conversation().stream(prompt, options()))
        stream = talk.stream(prompt, options())
        first = [next(stream) for _ in range(3)]
        with pytest.raises(ox.GenerateError, match="finish or close its stream first"):
            talk.snapshot_bytes()
        assert told(first) + told(other.resume(stream.snapshot())) == whole
        assert told(first) + told(stream) == whole
        talk.snapshot_bytes()
        talk.close()
        with pytest.raises(ox.GenerateError, match="the conversation is closed"):
            talk.snapshot_bytes()


def test_conversations_that_can_not_be_saved_or_resumed_are_refused(tmp_path):
    with load("llama") as engine, load("llama", kv_type="f32") as other:
        talk = engine.conversation()
        with pytest.raises(SnapshotMismatchError, match="kv_type"):
            other.resume(talk.snapshot_bytes())
        with pytest.raises(ox.ConfigError, match="this is of a conversation"):
            engine.resume(talk.snapshot_bytes(), sampler=ox.SamplerConfig())
        assert engine.resume(talk.snapshot_bytes()).tokens == []
        said = say(talk, [5, 6, 7])
        with ox.Engine.restore_bytes(talk.snapshot_bytes(), engine) as restored:  # its session has what was computed
            assert (restored.position, session_of(restored).tokens) == (len(said), said)
        talk.messages.clear()
        talk.messages.append(object())
        with pytest.raises(SnapshotError, match=r"messages\[0\] can't be saved"):
            talk.snapshot(tmp_path / "x")
        assert not list(tmp_path.iterdir())
