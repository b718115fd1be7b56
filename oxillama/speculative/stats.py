"""What speculation did, in numbers."""

from dataclasses import dataclass, fields
from typing import Any

from oxillama.json_values import fields_as_json

__all__ = ["SpecStats"]


@dataclass(frozen=True, slots=True)
class SpecStats:
    """Of one completion, or of several together.

    rounds: steps that checked guesses. drafted: tokens that were guessed and checked. accepted: those that came true.
    bonus: rounds in which all did, so that the step's last row gave one token more. elapsed: wall-clock seconds of
    these rounds, drafting included. draft_seconds: those in which drafts were made, for everybody who asked then.
    n1_fallbacks: steps without guesses, since a recurrent state had to be computed again after some were wrong.
    off: why it does not guess at the moment; "" if it does.
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    bonus: int = 0
    elapsed: float = 0.0
    draft_seconds: float = 0.0
    n1_fallbacks: int = 0
    off: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Every field by name, in the form that `json.dumps` takes."""
        return fields_as_json(self)

    def __add__(self, other: "SpecStats") -> "SpecStats":
        """Of both together; why it is off, of the second."""
        counts = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self) if f.name != "off"}
        return SpecStats(**counts, off=other.off)

    @property
    def rejected(self) -> int:
        """Guesses that did not come true, or came after one that did not."""
        return self.drafted - self.accepted

    @property
    def acceptance_rate(self) -> float:
        """Part of the guesses that came true; 0 if there were none."""
        return self.accepted / self.drafted if self.drafted else 0.0
