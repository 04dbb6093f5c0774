"""The generated page is what the code says."""

from __future__ import annotations

from disc_tf.cli import VERBS
from disc_tf.frontend.errors import REASON_TEXT
from disc_tf.options import Options
from disc_tf.testing.reference import PAGE, reference


def test_the_page_is_not_stale() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "run: python -m disc_tf.testing.reference"


def test_all_is_in_it() -> None:
    text = reference()
    assert all(f"## disc-tf {verb}\n" in text for verb in VERBS)
    assert all(f"| `{name}` |" in text for name in Options.__dataclass_fields__)
    assert all(f"| `{code}` |" in text for code in REASON_TEXT)
    assert "%(" not in text
