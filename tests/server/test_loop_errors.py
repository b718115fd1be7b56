"""Errors of the event loop: one line a second of a kind, without what they hold."""

import errno
import logging

from oxillama.server import loop_errors
from oxillama.server.loop_errors import MOST_KINDS, LoopErrors, Repeats


def test_repeats_are_counted_and_said_after_a_second(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(loop_errors.time, "monotonic", lambda: now[0])
    repeats = Repeats()
    assert [repeats.is_new("a") for _ in range(3)] == [0, None, None]
    assert repeats.is_new("b") == 0
    now[0] += 1.0
    assert [repeats.is_new("a") for _ in range(2)] == [2, None]


def test_few_kinds_are_remembered():
    repeats = Repeats()
    for i in range(10 * MOST_KINDS):
        repeats.is_new(i)
    assert len(repeats._said) <= MOST_KINDS


def test_a_flood_of_refused_accepts_is_one_line(caplog):
    handler = LoopErrors()
    for number in (errno.EMFILE, errno.ENFILE) * 1000:
        error = OSError(number, "Too many open files")
        handler(None, {"message": "socket.accept() out of system resource", "exception": error, "socket": "a socket"})
    assert [record.getMessage() for record in caplog.records] == ["no connection can be accepted: Too many open files"]
    assert not caplog.records[0].exc_info


def test_arguments_of_callbacks_are_left_out(caplog):
    caplog.set_level(logging.INFO)
    handler = LoopErrors()
    handler(None, {"message": "Exception in callback Handler.read(b'a secret')", "exception": ValueError("secret")})
    handler(None, {"message": "Task was destroyed but it is pending!", "task": "<Task secret>"})
    handler(None, {})
    assert [record.getMessage() for record in caplog.records] == [
        "Exception in callback Handler.read", "Task was destroyed but it is pending!", "an error in the event loop",
    ]  # fmt: skip
