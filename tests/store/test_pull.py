"""Pulling from a stand-in for the Hub: what is chosen, resumed, checked, linked; and what goes wrong."""

import errno
import hashlib
import io
import os
import shutil
import stat
from pathlib import Path

import pytest

from oxillama.core.loading import shipped_model
from oxillama.errors import ConfigError, LoadError, ModelNotFoundError
from oxillama.store.names import read_hub_name
from oxillama.store.pull import pull
from oxillama.store.store import Store
from oxillama.store.transfer import SUFFIX
from tests.hub import TOKEN, Hub, fail, put

SIZE = 300_000
DATA = bytes(range(256)) * (SIZE // 256) + b"end"


def pulled(name, **more):
    said = []
    found = pull(read_hub_name(name), Store(), say=said.append, **more)
    return found, said


def blobs(places, repo="owner/model"):
    folder = places / "hub" / f"models--{repo.replace('/', '--')}" / "blobs"
    return sorted(os.listdir(folder)) if folder.exists() else []


def gets():
    return [one for one in Hub.requests if one.startswith("GET") and "/api/" not in one]


def test_a_file_is_linked_and_found(near_hub):
    found, said = pulled("hf:owner/model/tiny.gguf")
    assert (found.name, found.n_new, said) == ("owner/model/tiny.gguf", 1, [])
    link = near_hub / "store" / "owner" / "model" / "tiny.gguf"
    assert link.is_symlink()
    assert link.read_bytes() == (near_hub / found.path).read_bytes() == Path(shipped_model()).read_bytes()
    for name in ("owner/model/tiny.gguf", "hf:owner/model/tiny.gguf", "owner/model", "model", "tiny", "TINY.GGUF"):
        assert Store().find(name).path == found.path


def test_the_second_time_sends_nothing(near_hub):
    pulled("hf:owner/model/tiny.gguf")
    Hub.requests.clear()
    found, _ = pulled("hf:owner/model/tiny.gguf")
    assert found.n_new == 0
    assert gets() == []


def test_quantisation_of_a_repository(near_hub):
    for quant in ("Q8_0", "Q4_K_M", "F16"):
        put(f"m-{quant}.gguf", DATA + quant.encode(), repo="o/r-GGUF")
    put("mmproj-F16.gguf", b"p", repo="o/r-GGUF")
    put("m-draft-Q8_0.gguf", b"d", repo="o/r-GGUF")
    found, said = pulled("hf:o/r-GGUF")
    assert found.name == "o/r-GGUF:Q4_K_M"
    assert said == [
        "the repository has an encoder of pictures or sound, too: hf:o/r-GGUF/mmproj-F16.gguf",
        "the repository has a draft, too: hf:o/r-GGUF/m-draft-Q8_0.gguf",
    ]
    assert pulled("hf:o/r-GGUF:q8_0")[0].name == "o/r-GGUF:Q8_0"
    assert len(gets()) == 2
    assert Store().find("r:F16") is None
    assert Store().find("r").name == "o/r-GGUF:Q4_K_M"
    assert Store().find("m:q8_0").name == "o/r-GGUF:Q8_0"
    put("m-Q5_0.gguf", DATA, repo="o/other")
    assert pulled("https://huggingface.co/o/other")[1] == ["there is no Q4_K_M: Q5_0 is the nearest of Q5_0"]


def test_split_files(near_hub):
    parts = [f"Q4_K_M/big-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    for part in parts:
        put(part, DATA + part.encode())
    found, _ = pulled("hf:owner/model:Q4_K_M")
    assert [os.path.basename(path) for path in found.parts] == [os.path.basename(part) for part in parts]
    assert sorted(os.listdir(near_hub / "store/owner/model/Q4_K_M")) == [os.path.basename(part) for part in parts]
    entry = Store().find("owner/model:Q4_K_M")
    assert (entry.n_bytes, entry.fault) == (found.n_bytes, "")
    (near_hub / "store/owner/model/Q4_K_M" / os.path.basename(parts[1])).unlink()
    os.unlink(entry.parts[1])
    assert Store().find("owner/model:Q4_K_M").fault == "1 of its 3 parts are missing"
    assert pulled("hf:owner/model:Q4_K_M")[0].n_new == 0  # the bytes are still there
    assert Store().find("owner/model:Q4_K_M").fault == ""


def test_a_cut_connection_is_resumed_within_a_pull(near_hub, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    put("m.gguf", DATA)
    fail("m.gguf", ("cut", 100_000), ("cut", 100_000))
    found, _ = pulled("hf:owner/model/m.gguf")
    assert Path(found.path).read_bytes() == DATA
    assert Hub.ranges == ["", "bytes=100000-", "bytes=200000-"]
    assert Hub.n_sent == len(DATA)


def test_what_came_stays_for_the_next_pull(near_hub, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    put("m.gguf", DATA)
    fail("m.gguf", ("cut", 100_000), *[("status", 500, {})] * 9)
    with pytest.raises(LoadError, match=r"97\.7 KiB of 292\.8 KiB are here, and the same command goes on from there"):
        pulled("hf:owner/model/m.gguf")
    digest = hashlib.sha256(DATA).hexdigest()
    assert blobs(near_hub) == [digest + SUFFIX]
    assert not os.path.lexists(near_hub / "store/owner/model/m.gguf")
    Hub.ranges.clear()
    fail("m.gguf")
    found, _ = pulled("hf:owner/model/m.gguf")
    assert Hub.ranges == ["bytes=100000-"]
    assert Path(found.path).read_bytes() == DATA
    assert blobs(near_hub) == [digest]


def test_a_server_without_ranges_begins_anew(near_hub, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    put("m.gguf", DATA)
    fail("m.gguf", ("cut", 100_000), ("whole",))
    assert Path(pulled("hf:owner/model/m.gguf")[0].path).read_bytes() == DATA


@pytest.mark.parametrize("begun", [b"", b"other bytes", DATA[:1000], DATA, DATA + b"more", b"x" * len(DATA)])
def test_parts_that_are_here_count_only_if_they_are_right(near_hub, begun):
    put("m.gguf", DATA)
    place = near_hub / "hub/models--owner--model/blobs" / (hashlib.sha256(DATA).hexdigest() + SUFFIX)
    place.parent.mkdir(parents=True)
    place.write_bytes(begun)
    if begun not in (b"", DATA[:1000], DATA, DATA + b"more"):
        with pytest.raises(LoadError, match=r"is not what the Hub says that it is: its hash is"):
            pulled("hf:owner/model/m.gguf")
        assert blobs(near_hub) == []
    found = pulled("hf:owner/model/m.gguf")[0]
    assert Path(found.path).read_bytes() == DATA


def test_a_part_that_is_a_link_is_not_followed(near_hub):
    put("m.gguf", DATA)
    target = near_hub / "precious"
    target.write_bytes(b"precious")
    place = near_hub / "hub/models--owner--model/blobs" / (hashlib.sha256(DATA).hexdigest() + SUFFIX)
    place.parent.mkdir(parents=True)
    place.symlink_to(target)
    with pytest.raises(LoadError, match=r"can't be written"):
        pulled("hf:owner/model/m.gguf")
    assert target.read_bytes() == b"precious"


def test_wrong_bytes_are_thrown_away(near_hub):
    put("m.gguf", DATA)
    fail("m.gguf", ("wrong",))
    with pytest.raises(LoadError, match=r"'m.gguf' of 'owner/model' is not what the Hub says that it is: its hash is"):
        pulled("hf:owner/model/m.gguf")
    assert blobs(near_hub) == []
    assert Store().entries() == []
    assert Path(pulled("hf:owner/model/m.gguf")[0].path).read_bytes() == DATA


def test_redirects_are_followed(near_hub):
    put("m.gguf", DATA)
    fail("m.gguf", ("redirect",))
    assert Path(pulled("hf:owner/model/m.gguf")[0].path).read_bytes() == DATA
    assert "GET /blobs/owner/model/resolve/main/m.gguf" in Hub.requests


def test_a_rate_limit_is_waited_for(near_hub, monkeypatch):
    waits = []
    monkeypatch.setattr("time.sleep", waits.append)
    put("m-Q4_K_M.gguf", DATA, repo="o/r")
    Hub.faults["/api/models/o/r"] = [("status", 429, {"Retry-After": "3"})]
    fail("m-Q4_K_M.gguf", ("status", 429, {"Retry-After": "2"}), repo="o/r")
    assert Path(pulled("hf:o/r")[0].path).read_bytes() == DATA
    assert waits[0] == 3
    assert waits[-1] == 2


def test_a_rate_limit_of_an_hour_is_said(near_hub, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it waits"))
    put("m-Q4_K_M.gguf", DATA, repo="o/r")
    Hub.faults["/api/models/o/r"] = [("status", 429, {"Retry-After": "3600"})]
    with pytest.raises(LoadError, match=r"can't get hf:o/r from the Hub: it takes no more requests now; .* in 3600 s"):
        pulled("hf:o/r")


def test_gated_and_private_repositories(near_hub, monkeypatch):
    for repo in ("owner/gated", "owner/private"):
        put("m-Q8_0.gguf", DATA, repo=repo)
    with pytest.raises(ModelNotFoundError, match=r"it is gated; accept its terms on its page there, .* HF_TOKEN"):
        pulled("hf:owner/gated")
    with pytest.raises(ModelNotFoundError, match=r"no such repository, or it is private .*HF_TOKEN"):
        pulled("hf:owner/private")
    with pytest.raises(ModelNotFoundError, match=r"'m.gguf' of 'owner/locked' from the Hub: it is refused"):
        pulled("hf:owner/locked/m.gguf")
    assert Store().entries() == []
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    for repo in ("owner/gated", "owner/private"):
        assert pulled(f"hf:{repo}")[0].name == f"{repo}:Q8_0"


def test_a_token_goes_nowhere_else(near_hub, monkeypatch, hub):
    put("m.gguf", DATA, repo="owner/gated")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    fail("m.gguf", ("redirect", hub.replace("127.0.0.1", "localhost")), repo="owner/gated")
    assert Path(pulled("hf:owner/gated/m.gguf")[0].path).read_bytes() == DATA
    tokens = dict(zip(Hub.requests, Hub.tokens, strict=True))
    assert tokens["GET /owner/gated/resolve/main/m.gguf"] == f"Bearer {TOKEN}"
    assert tokens["GET /blobs/owner/gated/resolve/main/m.gguf"] is None


def test_what_is_not_there(near_hub):
    with pytest.raises(ModelNotFoundError, match=r"can't get hf:o/none from the Hub: there is no such repository"):
        pulled("hf:o/none")
    with pytest.raises(ModelNotFoundError, match=r"has no file 'tinny.gguf'; did you mean 'tiny.gguf'"):
        pulled("hf:owner/model/tinny.gguf")
    assert pulled("hf:owner/model/TINY.gguf")[0].path.endswith("tiny.gguf")
    with pytest.raises(ModelNotFoundError, match=r"can't get"):
        pulled("hf:owner/model@v9")


def test_a_revision(near_hub):
    put("m-Q4_K_M.gguf", DATA)
    put("m-Q4_K_M.gguf", DATA[::-1], revision="other")
    first, other = pulled("hf:owner/model:Q4_K_M")[0], pulled("hf:owner/model:Q4_K_M@other")[0]
    assert Path(first.path).read_bytes() == DATA
    assert Path(other.path).read_bytes() == DATA[::-1]
    assert Store().find("owner/model:Q4_K_M").path == other.path  # the one that was pulled last


def test_hostile_names_of_a_repository(near_hub):
    Hub.extra = ["../../../evil-Q4_K_M.gguf", "/evil-Q4_K_M.gguf", "a\0-Q4_K_M.gguf", "x" * 300 + "-Q4_K_M.gguf",
                 "a\x1b[2J-Q4_K_M.gguf", "a-Q4_K_M-00001-of-99999.gguf"]  # fmt: skip
    with pytest.raises(
        ModelNotFoundError, match=r"has not all parts of 'a-Q4_K_M-00001-of-99999.gguf': .* and \d+ more"
    ):
        pulled("hf:owner/model")
    Hub.extra.pop()
    with pytest.raises(
        ConfigError, match=r"the name of 2 files: give one of hf:owner/model/bad.gguf, hf:owner/model/t"
    ):
        pulled("hf:owner/model")
    assert not any("evil" in name for _, _, names in os.walk(near_hub) for name in names)


def test_names_with_accents(near_hub):
    name = "Modèle 日本 (v2)-Q4_K_M.gguf"
    put(name, DATA, repo="o/r")
    found, _ = pulled("hf:o/r")
    assert os.path.basename(found.path) == name
    for other in (name, "modÈle 日本 (V2)", "Mode\u0300le 日本 (v2)-q4_k_m"):
        assert Store().find(other).path == found.path


def test_a_file_of_60_gb_is_refused_where_there_is_no_room(near_hub, monkeypatch):
    put("huge-Q4_K_M.gguf", 60 << 30, repo="o/huge")
    usage = shutil.disk_usage(near_hub)
    monkeypatch.setattr("shutil.disk_usage", lambda place: usage._replace(free=20 << 30))
    with pytest.raises(LoadError, match=r"hf:o/huge needs 60\.0 GiB more, and .* has room for 20\.0 GiB: .*HF_HOME"):
        pulled("hf:o/huge")
    assert gets() == []


def test_parts_of_a_split_file_need_room_together(near_hub, monkeypatch):
    for i in (1, 2, 3):
        put(f"huge-Q4_K_M-0000{i}-of-00003.gguf", (20 << 30) + i, repo="o/huge")
    usage = shutil.disk_usage(near_hub)
    monkeypatch.setattr("shutil.disk_usage", lambda place: usage._replace(free=50 << 30))
    with pytest.raises(LoadError, match=r"needs 60\.0 GiB more"):
        pulled("hf:o/huge")
    assert gets() == []


def test_a_large_file_is_stopped_and_gone_on_with(near_hub, monkeypatch):
    put("huge-Q4_K_M.gguf", 60 << 30, repo="o/huge")
    usage = shutil.disk_usage(near_hub)
    monkeypatch.setattr("shutil.disk_usage", lambda place: usage._replace(free=100 << 30))
    seen = []

    def report(name, done, total):
        seen.append((done, total))
        if done > 1 << 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pulled("hf:o/huge", report=report)
    assert seen[-1][1] == 60 << 30
    (part,) = blobs(near_hub, "o/huge")
    assert os.path.getsize(near_hub / "hub/models--o--huge/blobs" / part) < 64 << 20


def test_a_full_disk_leaves_what_came(near_hub, monkeypatch):
    put("m.gguf", DATA)
    from oxillama.store import transfer

    class Full(io.FileIO):
        def write(self, data):
            if self.tell() + len(data) > 1 << 17:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    monkeypatch.setattr(transfer, "open", lambda descriptor, mode, buffering: Full(descriptor, mode), raising=False)
    with pytest.raises(LoadError, match=r"could not be written after .*: No space left on device; what came stays"):
        pulled("hf:owner/model/m.gguf")
    monkeypatch.undo()
    assert blobs(near_hub)[0].endswith(SUFFIX)


def test_more_bytes_than_were_told(near_hub, monkeypatch):
    from oxillama.store import transfer

    put("m.gguf", DATA)
    found = transfer.remote_file("owner/model", "m.gguf", None)
    short = transfer.RemoteFile("owner/model", "m.gguf", None, found.etag, 1000, found.url)
    with pytest.raises(LoadError, match=r"has more than the 1000 bytes that the Hub says"):
        transfer.transfer(short)
    assert os.path.getsize(near_hub / "hub/models--owner--model/blobs" / (found.etag + SUFFIX)) <= 1000


def test_a_damaged_file_of_the_cache_is_fetched_anew(near_hub):
    put("m.gguf", DATA)
    blob = near_hub / "hub/models--owner--model/blobs" / hashlib.sha256(DATA).hexdigest()
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"x" * len(DATA))
    found, _ = pulled("hf:owner/model/m.gguf")
    assert (found.n_new, Path(found.path).read_bytes()) == (1, DATA)


def test_a_file_of_the_cache_is_linked(near_hub):
    put("m.gguf", DATA)
    blob = near_hub / "hub/models--owner--model/blobs" / hashlib.sha256(DATA).hexdigest()
    blob.parent.mkdir(parents=True)
    blob.write_bytes(DATA)
    found, _ = pulled("hf:owner/model/m.gguf")
    assert found.n_new == 0
    assert gets() == []
    assert not Store().has_fetched(blob.name)


def test_a_file_that_was_put_there_by_hand_is_not_replaced(near_hub):
    place = near_hub / "store/owner/model/tiny.gguf"
    place.parent.mkdir(parents=True)
    place.write_bytes(b"mine")
    with pytest.raises(LoadError, match=r"was put there by hand"):
        pulled("hf:owner/model/tiny.gguf")
    assert place.read_bytes() == b"mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_store_that_can_not_be_written(near_hub):
    (near_hub / "store").mkdir()
    (near_hub / "store").chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(LoadError, match=r"the store can't be written: .*OXILLAMA_MODELS"):
        pulled("hf:owner/model/tiny.gguf")


def test_a_store_that_is_a_file(near_hub):
    (near_hub / "store").write_text("")
    with pytest.raises(LoadError, match=r"the store can't be written: .*OXILLAMA_MODELS"):
        pulled("hf:owner/model/tiny.gguf")


def test_without_a_network_there_is_what_was_pulled(near_hub, monkeypatch):
    from huggingface_hub import constants

    path = pulled("hf:owner/model/tiny.gguf")[0].path
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    Hub.requests.clear()
    assert pulled("hf:owner/model/tiny.gguf")[0].path == path
    with pytest.raises(ModelNotFoundError, match=r"HF_HUB_OFFLINE forbids to download it"):
        pulled("hf:owner/model/bad.gguf")
    assert Hub.requests == []
