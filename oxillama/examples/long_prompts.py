"""Snapshots of long prompts: a document is read once, kept on disk, and questions about it begin where it ends.

    python -m oxillama.examples.long_prompts contract.txt "What is the notice period?" -m qwen3-4b-q4_k_m.gguf

The second question, also of another process and a week later, computes its own tokens alone. A snapshot names its
model, and one of another model is refused, so that a folder of them can't mislead.
"""

import argparse
import hashlib
import sys
from pathlib import Path

import oxillama as ox

SAMPLE = "The little fox lived in the red barn of a farm, with a cow and a hen. " * 12


def read(file: Path) -> str:
    """A text file. Raises ConfigError if it isn't one; OSError."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ox.ConfigError(f"{file} is no text: {error}") from None


def document_session(engine: ox.Engine, text: str, folder: Path) -> ox.Session:
    """A session that has read a text: from the folder, or computed now and left there for the next time."""
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.snap"
    try:
        session = engine.resume(path)
        assert isinstance(session, ox.Session)  # the other kinds of snapshot are streams and conversations
        return session
    except ox.SnapshotFileError:  # not there
        pass
    except ox.SnapshotError as error:  # damaged, or of another model: written anew
        print(f"reading again: {error}")
    session = engine.session()
    session.prefill(engine.tokenize(text))
    session.snapshot(path)
    return session


def ask(engine: ox.Engine, session: ox.Session, question: str, most: int = 60) -> str:
    """The answer to a question about the document; the session is afterwards as it was."""
    with session.fork() as asking:
        asking.prefill(engine.tokenize(f"\nQuestion: {question}\nAnswer:", add_special=False))
        ids: list[int] = []
        while len(ids) < most and asking.position < engine.context_size:
            token = asking.sample(temperature=0.0, repetition_penalty=1.0)
            if engine.is_eos(token):
                break
            ids.append(token)
            asking.forward_one(token)
    return engine.detokenize(ids)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="questions about a document that is read once")
    parser.add_argument("document", nargs="?", type=Path, help="text file; without it, a sample")
    parser.add_argument("questions", nargs="*", default=["Where does the fox live?"])
    parser.add_argument("-m", "--model", help="GGUF file; without it, the small model that ships")
    parser.add_argument("--folder", type=Path, default=Path("snapshots"))
    a = parser.parse_args(arguments)
    text = read(a.document) if a.document else SAMPLE
    a.folder.mkdir(parents=True, exist_ok=True)
    with ox.load(a.model) as engine, document_session(engine, text, a.folder) as session:
        print(f"{session.position} tokens of the document, {engine.metrics_snapshot().prefill_tokens} of them computed")
        for question in a.questions:
            print(f"{question} {ask(engine, session, question)}")


if __name__ == "__main__":
    try:
        main()
    except (ox.OxiLlamaError, OSError) as error:  # a file that is missing, or no model
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
