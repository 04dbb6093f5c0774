"""Text to `Dim`: see `dims.parse_dim`."""

from __future__ import annotations

import re

from disc_tf.ir.dims import ATOM_KINDS, MAX_DEPTH, MAX_SIZE, Dim, DimTooComplex, apply_atom, product, sym

_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_][A-Za-z0-9_.]*)|(//|[-+*%^(),]))")


class Parser:
    """Recursive descent over `sum := product (('+'|'-') product)*`; depth is bounded by MAX_DEPTH."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = []
        position = 0
        end = len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                raise ValueError(
                    f"bad dimension expression {text!r}: unexpected {text[position:].strip()[:10]!r}"
                )
            self.tokens.append(match.group(0).strip())
            position = match.end()
        self.tokens.append("")
        self.at = 0
        self.depth = 0

    def peek(self) -> str:
        return self.tokens[self.at]

    def take(self, expected: str | None = None) -> str:
        token = self.tokens[self.at]
        if expected is not None and token != expected:
            raise ValueError(
                f"bad dimension expression {self.text!r}: expected {expected!r}, found {token or 'end'!r}"
            )
        self.at += 1
        return token

    def sum(self) -> Dim:
        self.depth += 1
        if self.depth > 2 * MAX_DEPTH:
            raise DimTooComplex("dimension expression is nested too deeply")
        result = self.product()
        while self.peek() in ("+", "-"):
            result = result + self.product() if self.take() == "+" else result - self.product()
        self.depth -= 1
        return result

    def product(self) -> Dim:
        if self.peek() == "-":
            # Unary minus binds the first factor only, as in Python: -a // b == (-a) // b.
            minus = 0
            while self.peek() == "-":
                minus += 1
                self.take()
            result = self.power() if minus % 2 == 0 else -self.power()
        else:
            result = self.power()
        while self.peek() in ("*", "//", "%"):
            operator = self.take()
            right = self.power()
            result = (
                result * right if operator == "*" else result // right if operator == "//" else result % right
            )
        return result

    def power(self) -> Dim:
        base = self.primary()
        if self.peek() != "^":
            return base
        self.take()
        token = self.take()
        if not token.isdigit() or int(token) > MAX_SIZE:
            raise ValueError(f"bad dimension expression {self.text!r}: bad exponent {token!r}")
        return product([base] * int(token))

    def primary(self) -> Dim:
        token = self.take()
        if token == "(":
            result = self.sum()
            self.take(")")
            return result
        if token.isdigit():
            return Dim.of(int(token))
        if token in ATOM_KINDS[1:]:
            self.take("(")
            a = self.sum()
            self.take(",")
            b = self.sum()
            self.take(")")
            return apply_atom(token, a, b)
        if token[:1].isalpha() or token[:1] == "_":
            return sym(token)
        raise ValueError(f"bad dimension expression {self.text!r}: unexpected {token or 'end'!r}")


def parse(text: str) -> Dim:
    """Parse a whole text. Raises ValueError (DimTooComplex for what exceeds the budget)."""
    parser = Parser(text)
    result = parser.sum()
    if parser.peek():
        raise ValueError(f"bad dimension expression {text!r}: unexpected {parser.peek()!r}")
    return result
