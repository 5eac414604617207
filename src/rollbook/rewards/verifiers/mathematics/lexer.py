"""Text to tokens: numbers, letters, commands, words and marks. Thousands separators are settled here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from rollbook.rewards.verifiers.mathematics.nodes import Malformed
from rollbook.rewards.verifiers.mathematics.units import is_unit_word

MAX_TOKENS = 1500
MAX_DIGITS = 2000
TokenKind = Literal["number", "letter", "command", "function", "text", "mark"]
FUNCTIONS = frozenset({"sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "arccot", "sinh", "cosh", "tanh",
                       "asin", "acos", "atan", "log", "ln", "lg", "exp", "sqrt", "cbrt", "abs", "max", "min", "gcd", "lcm",
                       "floor",
                       "ceil", "det", "binom", "arg", "Re", "Im", "sgn", "deg", "tr", "rank", "dim", "factorial", "arctg",
                       "tg", "ctg", "cis"})
ALIASES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "tg": "tan", "ctg": "cot", "arctg": "arctan"}
GREEK = frozenset({"alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "vartheta", "iota",
                   "kappa",
                   "lambda", "mu", "nu", "xi", "pi", "rho", "sigma", "tau", "upsilon", "phi", "varphi", "chi", "psi", "omega",
                   "Gamma", "Delta", "Theta", "Lambda", "Xi", "Pi", "Sigma", "Phi", "Psi", "Omega", "ell", "hbar", "imath",
                   "jmath"})
SAME_LETTER = {"varepsilon": "epsilon", "vartheta": "theta", "varphi": "phi", "imath": "i", "jmath": "j"}
SAME_COMMAND = {"leq": "le", "leqslant": "le", "geq": "ge", "geqslant": "ge", "neq": "ne", "not=": "ne", "rightarrow": "to",
                "longrightarrow": "to", "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "dbinom": "binom", "tbinom": "binom",
                "ldots": "dots", "cdots": "dots", "dotsc": "dots", "dotsb": "dots", "vdots": "dots", "varnothing": "emptyset",
                "backslash": "setminus", "smallsetminus": "setminus", "vee": "lor", "wedge": "land", "lt": "<", "gt": ">",
                "bar": "overline", "colon": ":", "mid": "|", "vert": "|", "lvert": "|", "rvert": "|", "mod": "bmod", "ast": "*",
                "lbrace": "{", "rbrace": "}", "lbrack": "[", "rbrack": "]", "cdotp": "cdot", "Rightarrow": "implies",
                "Leftrightarrow": "iff", "implies": "implies", "degree": "degree", "%": "%", "infin": "infty", "R": "R", "Z": "Z"}
TOKEN = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<repeating>\d*\.\d*\\(?:overline|bar|dot)\s*\{?\s*\d+\s*\}?)"
    r"|(?P<scientific>(?:\d+\.\d+[eE][+-]?\d+|\d+(?:E[+-]?\d+|e(?:\+\d+|-?\d\d+))))(?![\w.])"
    r"|(?P<number>\d+(?:\.\d+)?|\.\d+)"
    r"|(?P<wording>\\(?:text|textbf|textit|textrm|textsf|texttt|mathrm|mathbf|mathsf|mbox|hbox|operatorname\*?)\s*"
    r"\{(?P<inner>(?:[^{}]|\{[^{}]*\})*)\})"
    r"|(?P<environment>\\(?:begin|end)\s*\{(?P<which>[A-Za-z*]+)\}(?:\{[^{}]*\})?)"
    r"|(?P<field>\\(?:mathbb|mathbf)\s*(?:\{\s*([RZNQC])\s*\}|([RZNQC])))"
    r"|(?P<command>\\(?:[A-Za-z]+|.))"
    r"|(?P<letters>[^\W\d_]+)"
    r"|(?P<mark>\*\*|<=|>=|!=|->|\.\.\.|[-+*/^_()\[\]{}|,;:=<>!'&%€£¥₹])", re.DOTALL)
UNIT_LETTERS = tuple("mgsLlhKNJWVAC")
GROUP = re.compile(r"\d{3}(?!\d)")


@dataclass(frozen=True, slots=True)
class Token:
    """A word of the input. `spaced` says whether white space stood before it, `value` is the number it is."""

    kind: TokenKind
    text: str
    spaced: bool = False
    value: Fraction | None = None


def tokens(text: str, *, spoken: bool = True) -> list[Token]:
    r"""The tokens of a cleaned text; numbers are grouped where a comma can only be a thousands separator.

    With `spoken`, runs of letters that are words or units are words; without, every letter is a symbol.

    Example: [token.text for token in tokens("2x<10,500")] == ["2", "x", "<", "10500"]
    """
    found = list(_raw(text, spoken))
    if len(found) > MAX_TOKENS:
        raise Malformed(f"more than {MAX_TOKENS} tokens")
    return _grouped(found)


def _raw(text: str, spoken: bool) -> Iterator[Token]:
    position, spaced = 0, False
    previous: Token | None = None
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            raise Malformed(f"unexpected {text[position]!r}")
        position = match.end()
        if match.lastgroup == "space" or match["space"]:
            spaced = True
            continue
        for token in _classified(match, spaced, previous if spoken else None, spoken):
            previous = token
            yield token
        spaced = False


def _classified(match: re.Match[str], spaced: bool, previous: Token | None, spoken: bool) -> Iterator[Token]:
    if match["number"] or match["scientific"]:
        yield _number(match[0], spaced)
    elif match["repeating"]:
        yield Token("number", match[0], spaced, _repeating(match[0]))
    elif match["wording"]:
        yield from _wording(match, spaced, previous)
    elif match["environment"]:
        yield Token("command", ("begin:" if match[0].startswith("\\begin") else "end:") + match["which"].rstrip("*"), spaced)
    elif match["field"]:
        yield Token("command", "field:" + re.sub(r"\\math(?:bb|bf)|[\s{}]", "", match[0]), spaced)
    elif match["command"]:
        yield _command(match[0][1:], spaced)
    elif match["letters"]:
        yield from _letters(match[0], spaced, previous, spoken)
    else:
        same = {"**": ("mark", "^"), "<=": ("command", "le"), ">=": ("command", "ge"), "!=": ("command", "ne"),
                "->": ("command", "to"), "...": ("command", "dots"), "*": ("command", "cdot")}.get(match[0], ("mark", match[0]))
        if match[0] == "!=" and not spaced and previous is not None and (previous.kind == "number" or previous.text == ")"):
            yield Token("mark", "!", spaced)  # 3!=6 is a factorial and an equation
            same = ("mark", "=")
        yield Token(same[0], same[1], spaced)  # type: ignore[arg-type]


def _number(text: str, spaced: bool) -> Token:
    if len(text) > MAX_DIGITS or len(text.lower().partition("e")[2]) > 4:
        raise Malformed("a number of too many digits")
    return Token("number", text, spaced, Fraction(text))


def _repeating(text: str) -> Fraction:
    whole, lead, period = re.fullmatch(r"(\d*)\.(\d*)\\[a-z]+\s*\{?\s*(\d+)\s*\}?", text).groups()  # type: ignore[union-attr]
    if len(text) > 200:
        raise Malformed("a period of too many digits")
    head = Fraction(int((whole or "0") + lead), 10 ** len(lead))
    return head + Fraction(int(period), 10 ** len(lead) * (10 ** len(period) - 1))


def _wording(match: re.Match[str], spaced: bool, previous: Token | None) -> Iterator[Token]:
    r"""One letter set upright is a unit behind a number and that letter elsewhere; a function's name is the function; all else is
    words."""
    inner = match["inner"].strip()
    if match[0].startswith("\\operatorname"):
        yield Token("function", ALIASES.get(inner, inner), spaced)
    elif inner in FUNCTIONS and inner not in ("min", "sec", "deg"):
        yield Token("function", ALIASES.get(inner, inner), spaced)
    elif inner in UNIT_LETTERS and previous is not None and previous.kind == "number":
        yield Token("text", inner, spaced)
    elif len(inner) == 1 and inner.isalpha() and not match[0].startswith(("\\text", "\\mbox", "\\hbox")):
        yield Token("letter", inner, spaced)
    elif inner:
        yield Token("text", inner, spaced)


def _command(name: str, spaced: bool) -> Token:
    name = SAME_COMMAND.get(name, name)
    if name in FUNCTIONS and name not in ("abs", "floor", "ceil", "binom", "sqrt", "cbrt"):
        return Token("function", ALIASES.get(name, name), spaced)
    if name in GREEK:
        return Token("letter", SAME_LETTER.get(name, name), spaced)
    return Token("mark" if name in ("|", "<", ">", ":", "[", "]", "%") else "command", name, spaced)


def _letters(run: str, spaced: bool, previous: Token | None, spoken: bool) -> Iterator[Token]:
    """A run of letters: a known name, a unit, the words and/or, an ordinary word, or a product of letters."""
    if run in FUNCTIONS and run not in ("Re", "Im", "arg", "deg", "tr", "lg"):
        yield Token("command" if run == "sqrt" else "function", ALIASES.get(run, run), spaced)
    elif run == "infinity" or run == "oo":
        yield Token("command", "infty", spaced)
    elif run in ("and", "or", "to"):
        yield Token("text", run, spaced)
    elif run == "mod":
        yield Token("command", "bmod", spaced)
    elif run in GREEK and len(run) > 1:
        yield Token("letter", run, spaced)
    elif len(run) > 1 and previous is not None and _measurable(previous) and is_unit_word(run):
        yield Token("text", run, spaced)
    elif len(run) > 3 and spoken:
        yield Token("text", run, spaced)
    else:
        for index, letter in enumerate(run):
            yield Token("letter", letter, spaced and index == 0)


def _measurable(previous: Token) -> bool:
    """Whether a unit can stand behind this token: a number, a closed bracket, another unit."""
    return previous.kind in ("number", "text") or previous.text in (")", "}", "/", "pi")


def _grouped(found: list[Token]) -> list[Token]:
    """Numbers joined over commas. Outside brackets every well-formed group is one number; inside them only where another comma is
    followed by a space, so that (100,200) stays a pair and {1,000, 5,000} has two elements."""
    joined: list[Token] = []
    level, roomy = 0, _roomy_levels(found)
    index = 0
    starts: list[int] = []
    while index < len(found):
        token = found[index]
        if token.text in ("(", "[", "{", "langle"):
            starts.append(index)
        elif token.text in (")", "]", "}", "rangle") and starts:
            starts.pop()
        level = starts[-1] if starts else -1
        if token.kind == "number" and token.text.isdigit() and len(token.text) <= 3 and token.text[0] != "0":
            index, token = _join(found, index, token, level == -1 or level in roomy)
        joined.append(token)
        index += 1
    return joined


def _join(found: list[Token], index: int, token: Token, allowed: bool) -> tuple[int, Token]:
    if (index and found[index - 1].text == ".") or not allowed:
        return index, token
    text = token.text
    while (index + 2 < len(found) and found[index + 1].text == "," and not found[index + 1].spaced and not found[index + 2].spaced
           and found[index + 2].kind == "number" and GROUP.match(found[index + 2].text)):
        text += found[index + 2].text
        index += 2
        if "." in found[index].text:
            break
    return index, _number(text, token.spaced)


def _roomy_levels(found: list[Token]) -> set[int]:
    """Start positions of the brackets inside which some comma is followed by a space and some group begins with a zero or a comma
    without a space: there the comma without a space groups."""
    starts: list[int] = []
    roomy: set[int] = set()
    for index, token in enumerate(found):
        if token.text in ("(", "[", "{", "langle"):
            starts.append(index)
        elif token.text in (")", "]", "}", "rangle") and starts:
            starts.pop()
        elif token.text in (",", ";") and starts and index + 1 < len(found) and (found[index + 1].spaced or token.text == ";"):
            roomy.add(starts[-1])
    return roomy
