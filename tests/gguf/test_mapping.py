"""A mapped file whose pages are gone when they are read, and what becomes of a SIGBUS that has nothing to do with it.

In processes of their own, which a signal ends alone.
"""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from oxillama.gguf._mapping import Mapping
from oxillama.gguf.source import FileSource

PAGE = os.sysconf("SC_PAGESIZE")

CHILD = """
    import ctypes, faulthandler, mmap, os, resource, signal, sys, tempfile, threading
    import numpy as np
    from oxillama.gguf._mapping import Mapping, watch

    PAGE = mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    folder = tempfile.TemporaryDirectory()

    def new_file(n_pages=64):
        fd, path = tempfile.mkstemp(dir=folder.name)
        os.write(fd, b"x" * (n_pages * PAGE))
        os.close(fd)
        return path

    def mapped(path, of=None):
        fd = os.open(path, os.O_RDONLY)
        made = of(fd) if of else Mapping(fd, os.path.getsize(path))
        os.close(fd)
        return made

    def read(mapping):
        return np.frombuffer(mapping, np.uint8)

    def cut(mapping_of=None):
        "A file of which one page is left, still mapped whole."
        path = new_file()
        made = mapped(path, mapping_of)
        os.truncate(path, PAGE)
        return made

    def others():
        "The same, mapped by somebody else."
        return cut(lambda fd: mmap.mmap(fd, 64 * PAGE, prot=mmap.PROT_READ))

    def ours_works():
        mapping = cut()
        assert read(mapping).sum() == PAGE * ord("x") and mapping.missing
"""


def child(code):
    """(how it ended, what it printed, what it complained of)"""
    whole = textwrap.dedent(CHILD) + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


def works(code):
    status, _, complaints = child(code)
    assert status == 0, complaints


# ---- what is ours


def test_pages_that_are_gone_are_zeros_and_are_noted():
    works("""
        path = new_file()
        mapping, whole = mapped(path), cut()
        data = read(mapping)
        assert (data == ord("x")).all() and not mapping.missing
        os.truncate(path, 3 * PAGE + 5)
        assert not mapping.missing
        for i in reversed(range(64)):
            assert data[i * PAGE] == (ord("x") if i < 4 else 0), i
            assert mapping.missing
        assert not data[3 * PAGE + 5 :].any() and (data[: 3 * PAGE + 5] == ord("x")).all()
        assert not whole.missing
    """)


def test_a_page_that_comes_back_is_not_used():
    works("""
        path = new_file()
        mapping = mapped(path)
        os.truncate(path, 0)
        assert not read(mapping)[9 * PAGE]
        with open(path, "wb") as f:
            f.write(b"y" * (64 * PAGE))
        assert mapping.missing and not read(mapping)[9 * PAGE :].any()
    """)


def test_many_threads_meet_it():
    works("""
        import ctypes
        find = ctypes.CDLL(None).memchr  # without the GIL
        find.argtypes, find.restype = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t], ctypes.c_void_p
        for _ in range(60):
            path = new_file(512)
            mapping = mapped(path)
            data, found = read(mapping), []

            def look(i):
                found.append(find(data.ctypes.data + i * PAGE, ord("z"), (512 - i) * PAGE))

            threads = [threading.Thread(target=look, args=(i,)) for i in range(8)]
            for thread in threads[:4]:
                thread.start()
            os.truncate(path, PAGE)
            for thread in threads[4:]:
                thread.start()
            for thread in threads:
                thread.join()
            assert found == [None] * 8 and mapping.missing
    """)


def test_more_mappings_than_one_page_of_notes_has():
    works("""
        paths = [new_file(2) for _ in range(300)]
        for _ in range(2):
            mappings = [mapped(path) for path in paths]
            for i in (0, 127, 128, 299):
                os.truncate(paths[i], 0)
                assert not read(mappings[i]).any()
            assert [i for i, m in enumerate(mappings) if m.missing] == [0, 127, 128, 299]
            for i in (0, 127, 128, 299):
                paths[i] = new_file(2)
            del mappings
    """)


def test_in_forked_children():
    works("""
        path = new_file()
        mapping = mapped(path)
        for _ in range(2):
            pid = os.fork()
            if not pid:
                os.truncate(path, PAGE)
                assert not read(mapping)[PAGE:].any() and mapping.missing
                ours_works()
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert not mapping.missing and not read(mapping)[PAGE:].any() and mapping.missing
    """)


def test_a_part_that_was_given_back_is_read_again():
    works("""
        mapping = mapped(new_file())
        assert (read(mapping) == ord("x")).all()
        for first, n in ((0, 64 * PAGE), (5, PAGE), (PAGE, 3 * PAGE), (63 * PAGE, PAGE), (1, 1), (60 * PAGE, 9 * PAGE)):
            mapping.release(first, n)
        assert (read(mapping) == ord("x")).all()
    """)


def test_what_cant_be_mapped(tmp_path):
    (tmp_path / "empty").touch()
    with (tmp_path / "empty").open() as f, pytest.raises(OSError, match="Invalid argument"):
        Mapping(f.fileno(), 0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        Mapping(-1, PAGE)


def test_nobody_writes_to_it(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    data = FileSource(tmp_path / "file").map()
    assert data.tobytes() == b"abc"
    with pytest.raises(ValueError, match="WRITEABLE"):
        data.setflags(write=True)
    with pytest.raises(ValueError, match="read-only"):
        data[0] = 1


# ---- what isn't


DIES = -signal.SIGBUS


def test_a_page_of_others_ends_the_process_as_it_did():
    for first in ("", "ours_works()", "signal.signal(signal.SIGBUS, signal.SIG_IGN); ours_works()"):
        status, printed, _ = child(f"{first}\nother = others()\nprint('begins', flush=True)\nother[PAGE]")
        assert (status, printed) == (DIES, "begins\n")


def test_so_does_a_page_where_one_of_ours_was():
    status, printed, _ = child("""
        mapping = cut()
        start, n = read(mapping).ctypes.data, 64 * PAGE
        assert not read(mapping)[PAGE:].any()
        del mapping
        path = new_file()
        fd = os.open(path, os.O_RDONLY)
        library = ctypes.CDLL(None, use_errno=True)
        library.mmap.restype = ctypes.c_void_p
        library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        assert library.mmap(start, n, mmap.PROT_READ, mmap.MAP_SHARED | 0x10, fd, 0) == start  # MAP_FIXED
        os.truncate(path, PAGE)
        print("begins", flush=True)
        ctypes.string_at(start + PAGE, 1)
    """)
    assert (status, printed) == (DIES, "begins\n")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_handler_in_python(when):
    code = ["ours_works()", "signal.signal(signal.SIGBUS, lambda *_: heard.append(1))"]
    then = """
    for n in range(1, 4):
        watch()
        signal.raise_signal(signal.SIGBUS)
        assert len(heard) == n
        ours_works()
    assert len(heard) == 3
    """
    works("\n".join(["heard = []", *(code if when == "after" else code[::-1]), textwrap.dedent(then)]))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("how", "status"), [("SIG_IGN", 0), ("SIG_DFL", DIES)])
def test_a_signal_that_is_sent(when, how, status):
    code = ["ours_works()", f"signal.signal(signal.SIGBUS, signal.{how})"]
    lines = [*(code if when == "after" else code[::-1]), "assert watch()", "print('sent', flush=True)"]
    found = child("\n".join([*lines, "os.kill(os.getpid(), signal.SIGBUS)", "ours_works()"]))
    assert found[:2] == (status, "sent\n"), found[2]


@pytest.mark.parametrize("code", [
    "faulthandler.enable(); ours_works()",
    "ours_works(); faulthandler.enable(); watch(); ours_works()",
    "ours_works(); faulthandler.enable(); watch(); faulthandler.disable(); faulthandler.enable(); ours_works()",
    "faulthandler.enable(); ours_works(); faulthandler.disable(); faulthandler.enable(); watch(); ours_works()",
])  # fmt: skip
def test_python_tells_where_it_was(code):
    status, printed, complaints = child(f"{code}\nother = others()\nprint('begins', flush=True)\nother[PAGE]")
    assert (status, printed) == (DIES, "begins\n"), complaints
    assert complaints.count("Fatal Python error: Bus error") == 1


def test_the_place_is_taken_back_often_but_not_for_ever():
    works("""
        for _ in range(50):  # the same two
            faulthandler.enable()
            ours_works()
            faulthandler.disable()
            ours_works()
        for _ in range(20):
            signal.signal(signal.SIGBUS, signal.SIG_DFL)
            ours_works()
    """)


HANDLER_IN_C = """
    class Action(ctypes.Structure):  # as the C library of Linux has it
        _fields_ = [("handler", ctypes.c_void_p), ("mask", ctypes.c_ulong * 16), ("flags", ctypes.c_int),
                    ("restorer", ctypes.c_void_p)]

    SA_SIGINFO, SA_RESETHAND = 4, 0x80000000 - (1 << 32)
    library, heard, blocked = ctypes.CDLL(None), [], []

    @ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    def handler(number, info, context):
        heard.append((number, bool(info), bool(context)))
        blocked.append({s for s in (signal.SIGUSR1, signal.SIGUSR2) if s in signal.pthread_sigmask(0, [])})

    def install(flags):
        action = Action(ctypes.cast(handler, ctypes.c_void_p), (1 << (signal.SIGUSR1 - 1),), flags)
        assert library.sigaction(signal.SIGBUS, ctypes.byref(action), None) == 0
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the layout of a structure in C")
def test_a_handler_in_c_gets_all_that_it_would():
    code = """
    install(SA_SIGINFO)
    ours_works()
    for _ in range(3):
        library.raise_signal = library["raise"]
        library.raise_signal(signal.SIGBUS)
    assert heard == [(signal.SIGBUS, True, True)] * 3
    assert blocked == [{signal.SIGUSR1}] * 3
    ours_works()
    """
    works(textwrap.dedent(HANDLER_IN_C) + textwrap.dedent(code))


@pytest.mark.skipif(sys.platform != "linux", reason="the layout of a structure in C")
def test_a_handler_in_c_that_is_for_once():
    code = """
    install(SA_SIGINFO | SA_RESETHAND)
    ours_works()
    library["raise"](signal.SIGBUS)
    ours_works()
    print(len(heard), flush=True)
    library["raise"](signal.SIGBUS)
    """
    found = child(textwrap.dedent(HANDLER_IN_C) + textwrap.dedent(code))
    assert found[:2] == (DIES, "1\n"), found[2]


@pytest.mark.parametrize("read", ["file.tensors['t'].dequantize()", "gguf.copy(file, path + '.copy')"])
def test_who_reads_takes_the_place_back(read):
    works(f"""
        import oxillama.gguf as gguf
        from oxillama.errors import ModelFileError

        path = os.path.join(folder.name, "m.gguf")
        gguf.write_gguf(path, {{"many": list(range(100_000))}}, {{"t": np.arange(400_000, dtype=np.float32)}})
        file = gguf.open(path)
        faulthandler.enable()
        os.truncate(path, 9)
        try:
            {read}
        except ModelFileError:
            pass
        else:
            raise AssertionError
    """)
