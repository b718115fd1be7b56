"""Snapshots as methods: of an engine and of its sessions. How they are made is in `oxillama/snapshot`.

That package knows the engine's parts, so nothing of it is imported before it is needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from oxillama.config import EngineConfig, EngineOptions, ModelSource, SamplerConfig
from oxillama.core.engine_core import EngineCore
from oxillama.core.results import CancelToken
from oxillama.core.stopping import Criteria
from oxillama.lora import Lora, LoraRegistry
from oxillama.sampling import LogitsProcessor, SamplerChain

if TYPE_CHECKING:
    from oxillama.core.beam_rounds import BeamRounds
    from oxillama.core.context import EngineContext, LoadedEngine
    from oxillama.core.conversation import Conversation
    from oxillama.core.draft_options import DraftLike
    from oxillama.core.loading import EngineParts
    from oxillama.core.session import Session
    from oxillama.core.text_stream import Chunks
    from oxillama.snapshot import SnapshotInfo
    from oxillama.snapshot.engine_snapshots import EngineSnapshots

__all__ = ["SnapshotMethods", "make_snapshots"]

Path = str | os.PathLike[str]
Place = Path | bytes | bytearray | memoryview


class SnapshotMethods:
    """A session, or a request for text, kept in a file and gone on with elsewhere, bit for bit."""

    context: EngineContext
    _core: EngineCore
    _session: Session
    config: EngineConfig

    @property
    def logits(self) -> NDArray[np.float32] | None:
        """Those of the session's last position, float32 [n_vocab]; None unless they have just been computed."""
        return self._session.logits

    def snapshot(
        self, path: Path, *, base: Path | None = None, compress: bool = False, shared: bool = False, format: int = 2
    ) -> None:
        """Saves the engine's session to a file: its tokens, all that is computed of them, and the engine's settings.

        The model isn't saved, only what it is known by. The file takes its name when all of it is on disk; until then,
        and if anything fails, what had the name before stays.

        base: a snapshot in the same folder that was written before: what it has isn't written again, and the new one
            needs it, and what it needs. Nothing is taken from one with 1,024 others before it, or of kernels with other
            digits: the new one is whole then. path must not be a file that base needs.
        compress: with zstd. shared: what whole blocks of tokens hold goes to the folder `blocks` beside the file, once
            for all snapshots there; `oxillama.snapshot.collect_garbage` removes what none needs.
        format: 1 writes what the original reads: attention's KV as float32.

        Raises SnapshotError and its children, ConfigError, EngineClosedError; GenerateError while another thread uses
        the session, or for an encoder; ModelFileError if the model's file was changed since it was loaded.
        """
        self._session.snapshot(path, base=base, compress=compress, shared=shared, format=format)

    def snapshot_bytes(self, *, compress: bool = False, format: int = 2) -> bytes:
        """What `snapshot` would write."""
        return self._session.snapshot_bytes(compress=compress, format=format)

    @classmethod
    def restore(
        cls,
        path: Path,
        model_path: ModelSource | LoadedEngine = None,
        *,
        adapters: Iterable[Path | Lora] = (),
        allow_download: bool = False,
        **fields: Unpack[EngineOptions],
    ) -> Self:
        """Loads the model that a snapshot is of, with its settings and adapters, and the session that was saved.

        Of a request for text, or a search's best beam, the session gets what was computed; `resume` goes on with it.

        model_path: where the model is, if not where it was; a copy will do. Or a loaded engine: its weights are shared,
            and stay after it is closed, and nothing is loaded.
        adapters: those that are not where they were. fields: settings in place of those that were saved.
        allow_download: a model of the Hub that is neither where it was nor in the Hub's local cache may be fetched,
            with the token of this user; by the name that the snapshot has, which is anybody's.

        Files that a snapshot names (model, tokenizer_path, adapters) are read where nothing is given in their place,
        if they are regular files, and used if they have the size, the ends and the digest that it says.

        Raises SnapshotError and its children, LoadError and its children, ConfigError.
        """
        from oxillama.snapshot.restore import restored

        return restored(cls, path, model_path, adapters, allow_download, fields)  # type: ignore[type-var]

    @classmethod
    def restore_bytes(
        cls,
        data: bytes | bytearray | memoryview,
        model_path: ModelSource | LoadedEngine = None,
        *,
        adapters: Iterable[Path | Lora] = (),
        allow_download: bool = False,
        **fields: Unpack[EngineOptions],
    ) -> Self:
        """`restore` of the bytes of a snapshot."""
        from oxillama.snapshot.restore import restored

        return restored(cls, data, model_path, adapters, allow_download, fields)  # type: ignore[type-var]

    def resume(
        self,
        snapshot: Place,
        *,
        sampler: SamplerConfig | SamplerChain | None = None,
        logits_processors: SequenceOf[LogitsProcessor] | None = None,
        stopping_criteria: Criteria = None,
        cancel_token: CancelToken | None = None,
        draft: DraftLike = None,
    ) -> Chunks | Session | Conversation | BeamRounds:
        """Goes on with what was saved, in this engine, beside all else that it does.

        A request for text gives its further chunks, beginning with those that were not read, several completions
        those of all; a beam search gives `BeamRounds`, a session a `Session`, a conversation a `Conversation`. What is
        taken from a snapshot is never lent to other requests: it may be anybody's.

        snapshot: path or bytes. sampler, logits_processors, stopping_criteria: functions of the caller's own, which no
            file can hold, given again; `sampler` is a chain with the same stages. Of a session, those of its sampler.
        draft: source of draft tokens from here on, as for `generate`, with the options of the request. Without it,
        "lookup" and "grammar" go on by themselves; a draft of the caller's own is missed, which is logged, and costs
        time alone. With acceptance="rejection" the text depends on it: it must be given, and be the same.

        Raises SnapshotError and its children, ConfigError, KvCacheFullError, QueueFullError, EngineClosedError, and
        ModelFileError if the model's file was changed since it was loaded.
        """
        from oxillama.snapshot.resume import resumed

        return resumed(
            self.context, snapshot, sampler, logits_processors, cancel_token, draft, stopping_criteria
        )  # fmt: skip

    @staticmethod
    def snapshot_info(snapshot: Place) -> SnapshotInfo:
        """What a snapshot is of, without its model. Raises SnapshotError and its children."""
        from oxillama.snapshot import snapshot_info

        return snapshot_info(snapshot)


def make_snapshots(core: EngineCore, config: EngineConfig, parts: EngineParts, loras: LoraRegistry) -> EngineSnapshots:
    """What makes an engine's snapshots."""
    from oxillama.snapshot.engine_snapshots import EngineSnapshots

    return EngineSnapshots(core, config, parts, loras)
