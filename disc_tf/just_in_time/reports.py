"""What a jitted function is doing: `JitFunction.report`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from disc_tf.report import Report, counted


class JitWarning(UserWarning):
    """A rank signature, or a kind of call, that stays in TensorFlow; the message has the reason."""


@dataclasses.dataclass
class SignatureReport:
    """One rank signature.

    ``state``: traced, compiling, compiled or failed (TensorFlow answers then; ``reason``). ``report``: of the compiler, None before there
    is one. ``from_cache``: read from disk. ``seconds``: from the trace's end to the switch. ``answers``: number of calls that "compiled"
    code answered, and "tensorflow".
    """

    signature: str
    state: str
    reason: str = ""
    report: Report | None = None
    from_cache: bool = False
    seconds: float = 0.0
    answers: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class JitReport:
    """``signatures``: in the order of their first calls. ``notes``: kinds of calls that have no rank signature and are TensorFlow's."""

    name: str
    signatures: list[SignatureReport]
    notes: list[str] = dataclasses.field(default_factory=list)

    def __iter__(self) -> Iterator[SignatureReport]:
        return iter(self.signatures)

    def __len__(self) -> int:
        return len(self.signatures)

    def __getitem__(self, index: int) -> SignatureReport:
        return self.signatures[index]

    @property
    def from_cache(self) -> bool:
        """Whether everything that is compiled was read from disk."""
        compiled = [s for s in self.signatures if s.state == "compiled"]
        return bool(compiled) and all(s.from_cache for s in compiled)

    def to_json(self, *, indent: int | None = 2) -> str:
        return json.dumps(self.to_dict(), indent=indent)

    def to_dict(self) -> dict[str, Any]:
        return {"from_cache": self.from_cache, **dataclasses.asdict(self)}

    def to_text(self) -> str:
        lines = [f"{self.name}: {counted(len(self.signatures), 'rank signature')}"]
        for s in self.signatures:
            how = " from the cache" if s.from_cache else ""
            after = f" after {s.seconds:.2f} s" if s.state == "compiled" else ""
            lines.append(f"{s.signature}: {s.state}{how}{after}{': ' + s.reason if s.reason else ''}")
            spelled = ", ".join(f"{n} by {who}" for who, n in s.answers.items() if n)
            if spelled:
                lines.append(f"  answers: {spelled}")
            if s.report is not None:
                lines += ["  " + line for line in s.report.to_text(left_out_limit=4).splitlines()]
        return "\n".join([*lines, *(f"left to TensorFlow: {n}" for n in self.notes)])

    def __str__(self) -> str:
        return self.to_text()
