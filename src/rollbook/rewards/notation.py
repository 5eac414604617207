r"""One way to write what can be written in several: text rewriting before anything is parsed. Nothing here computes."""

from __future__ import annotations

import re
import unicodedata

from rollbook.rewards.numbers import bare

SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱ", "0123456789+-ni")
SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉ₙ", "0123456789n")
RAISED, LOWERED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱ]+"), re.compile("[₀₁₂₃₄₅₆₇₈₉ₙ]+")
VULGAR = {"½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4), "⅕": (1, 5), "⅖": (2, 5), "⅗": (3, 5), "⅘": (4, 5),
          "⅙": (1, 6), "⅚": (5, 6), "⅐": (1, 7), "⅛": (1, 8), "⅜": (3, 8), "⅝": (5, 8), "⅞": (7, 8), "⅑": (1, 9), "⅒": (1, 10)}
GREEK = {"α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "ζ": "zeta", "η": "eta", "θ": "theta",
         "ι": "iota", "κ": "kappa", "λ": "lambda", "μ": "mu", "ν": "nu", "ξ": "xi", "π": "pi", "ρ": "rho", "σ": "sigma",
         "τ": "tau", "υ": "upsilon", "φ": "phi", "χ": "chi", "ψ": "psi", "ω": "omega", "Γ": "Gamma", "Δ": "Delta", "Θ": "Theta",
         "Λ": "Lambda", "Ξ": "Xi", "Π": "Pi", "Σ": "Sigma", "Φ": "Phi", "Ψ": "Psi", "Ω": "Omega"}
SIGNS = {"°": r"\degree ", "∞": r"\infty ", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": r"\div ", "∕": "/", "⁄": "/",
         "≤": r"\le ", "⩽": r"\le ", "≥": r"\ge ", "⩾": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "≡": r"\equiv ", "∪": r"\cup ",
         "∩": r"\cap ", "∖": r"\setminus ", "∅": r"\emptyset ", "±": r"\pm ", "∓": r"\mp ", "√": r"\sqrt ", "∛": r"\sqrt[3]",
         "∈": r"\in ", "∉": r"\notin ", "∧": r"\land ", "∨": r"\lor ", "→": r"\to ", "⟨": r"\langle ", "⟩": r"\rangle ",
         "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}", "⌊": r"\lfloor ",
         "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "∠": r"\angle ", "’": "'", "′": "'", "″": "''", "“": '"', "”": '"',
         "‘": "'",
         "¢": r"\text{cents}", "＄": "\\$", "∑": r"\sum ", "∫": r"\int ", "∣": "|", "−": "-", "⋯": r"\cdots ", "∘": r"\circ ",
         "∶": ":"}
INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufeff]")
SIZED = re.compile(r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![A-Za-z])\s*(?:\.(?!\d))?")
LAYOUT = re.compile(r"\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|normalsize|large|Large|rm|bf|it|mathstrut|strut"
                    r"|hfill|centering|nonumber|notag|null|relax|allowbreak)(?![A-Za-z])")
SPACE = re.compile(r"\\[,;:!> ]|\\(?:quad|qquad|thinspace|medspace|thickspace|negthinspace|enspace|space)(?![A-Za-z])|~"
                   r"|[\s\u00a0]+")
SKIPPED = re.compile(r"\\(?:hspace|vspace|phantom|hphantom|vphantom|tag|label|color)\*?\s*\{[^{}]*\}")
FONT = re.compile(r"\\(?:textcolor|colorbox)\s*\{[^{}]*\}|\\(?:boldsymbol|mathit|mathsf|mathtt|mathcal|mathnormal|pmb|bm|emph"
                  r"|underline|fbox|boxed|ensuremath|smash|mathop|mathrel|mathbin|mathord|mathopen|mathclose)(?=\s*\{)")
THIN_GROUPS = re.compile(r"(?<![\d.])\d{1,3}(?:(?:\\,|\\!|\{,\}|,\\!|\\;|\\ |\u202f|\u2009)\d{3})+(?!\d)")
GROUP_MARK = re.compile(r"\\[,!; ]|\{,\}|,|\u202f|\u2009|!")
SPACED_GROUPS = re.compile(r"[+-]?\d{1,3}(?: \d{3})+(?:\.\d+)?")
WORDING = re.compile(r"\\(?:text|textbf|textit|textrm|textsf|texttt|mathrm|mathbf|operatorname\*?|mbox|hbox)\s*\{([^{}]*)\}")
TEXT_MEASURE = re.compile(r"\\(?:text|textbf|mbox)\s*\{\s*(-?\d[\d.,]*)\s+([A-Za-z][^{}]*)\}")
EMPTY = re.compile(r"(?<=[\d\s])\{\s*\}")
TEXT_NUMBER = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|hbox)\s*\{(\s*(?:[^A-Za-z{}\\]|\\[$%,; ])*)\}")
ROW_SPACE = re.compile(r"\\\\\s*\[-?[\d.]+\s*(?:pt|em|ex|mm|cm)\]")
SPOKEN_LIST = re.compile(r"\\(?:text|textbf|mbox)\s*\{(\s*[\d.,]+(?:\s*(?:,|and|or)\s*[\d.,]+)+\s*)\}")
OUTWARD = re.compile(r"([\[\]])([^\[\]()]*[,;][^\[\]()]*)([\[\]])")
MINUTES = re.compile(r"(\d+)\s*(?:\^\s*\{?\s*\\circ\s*\}?|\\degree)\s*(\d{1,2})\s*(?:'(?!')|\^\s*\{?\s*\\prime\s*\}?|\\prime)"
                     r"(?:\s*(\d{1,2}(?:\.\d+)?)\s*(?:''|\"|\^\s*\{?\s*\\prime\s*\\prime\s*\}?))?")
UNIT_VECTOR = re.compile(r"\\(?:hat|vec|widehat|overrightarrow|mathbf|boldsymbol|bm)\s*(?:\{\s*)?"
                         r"(?:\\([ij])math|([ijk]))(?![A-Za-z])\s*\}?")
FOR_INTEGERS = r"(?:for|where)\s+(?:any |all |every |some |each |an )?integers?"
INTEGER_WORDS = re.compile(rf"(?:,\s*)?\\(?:text|mbox|textrm)\s*\{{\s*,?\s*{FOR_INTEGERS}\s+([a-z])\s*\}}"
                           rf"|(?:,\s*)?\\(?:text|mbox|textrm)\s*\{{\s*,?\s*{FOR_INTEGERS}\s*\}}\s*([a-z])(?![A-Za-z])")
CELL_COMMA = re.compile(r"[,;]\s*&")       # the comma that ends a cell of cases belongs to the sentence
NESTED = re.compile(r"\\(?:text|textbf|textit|textrm|textsf|texttt|mathrm|mathbf|mbox|hbox|emph)\s*\{\s*"
                    r"(\\(?:text|textbf|textit|textrm|textsf|texttt|mathrm|mathbf|mbox|hbox)\s*\{[^{}]*\})\s*\}")
CURLY = str.maketrans("“”‘’", "\"\"''")
QUOTES = (("`", "`"), ('"', '"'), ("**", "**"), ("'", "'"))
LETTERS = re.compile(r"[^\W\d_]+(?:[ '-]+[^\W\d_]+)*")
OPENING, CLOSING = "([{", ")]}"


def clean(text: str) -> str:
    r"""The text in one spelling: LaTeX names for signs; no layout, wrappers, closing punctuation or spaces inside numbers.

    Example: clean(r"$\left(x²,\,5\,280\right).$") == "(x^{2}, 5280)"
    """
    text = unwrap(CELL_COMMA.sub(" &", INVISIBLE.sub("", text)))
    text = THIN_GROUPS.sub(lambda match: GROUP_MARK.sub("", match[0]), text)
    text = _dollars(spell(text).replace("\\textdollar", "\\$"))
    text = SKIPPED.sub(" ", LAYOUT.sub(" ", SIZED.sub(" ", text)))
    text = MINUTES.sub(_in_degrees, text)
    text = UNIT_VECTOR.sub(r"\\mathbf{\1\2}", INTEGER_WORDS.sub(r", \1\2 \\in \\mathbb{Z}", text))
    text = FONT.sub("", text)
    text = SPOKEN_LIST.sub(lambda match: re.sub("and|or", r" \\text{\g<0>} ", match[1]), text)
    text = EMPTY.sub("", TEXT_NUMBER.sub(r" \1 ", TEXT_MEASURE.sub(r"\1 \\text{\2}", text)))
    text = ROW_SPACE.sub(r"\\cr ", text).replace("\\\\", "\\cr ").replace("{:}", ":")
    if text.startswith("]") or text.rstrip().endswith("["):
        text = OUTWARD.sub(_turned, text)
    text = SPACE.sub(" ", text).strip()
    return text.replace(" ", "") if SPACED_GROUPS.fullmatch(text) else text


def _in_degrees(match: re.Match[str]) -> str:
    """Degrees with minutes and seconds as one number of degrees."""
    seconds = rf"+\frac{{{match[3]}}}{{3600}}" if match[3] else ""
    return rf"\left({match[1]}+\frac{{{match[2]}}}{{60}}{seconds}\right)^{{\circ}}"


def _turned(match: re.Match[str]) -> str:
    """An interval whose brackets point outwards where an end is left out, ]1,3], as (1,3]."""
    return ("[" if match[1] == "[" else "(") + match[2] + ("]" if match[3] == "]" else ")")


def unwrap(text: str) -> str:
    """The text without math delimiters, quotation marks, emphasis and punctuation around the whole of it."""
    before, text = None, text.translate(CURLY)
    while text != before:
        before = text
        text = NESTED.sub(r"\1", bare(text))
        text = re.sub(r"(?<!\\)\\$", "", text)
        if text.endswith((",", ";", ":")) and not text.endswith(("\\,", "\\;", "\\:")):
            text = text[:-1].rstrip()
        for left, right in QUOTES:
            inner = text[len(left):len(text) - len(right)]
            if len(text) > len(left) + len(right) and text.startswith(left) and text.endswith(right) and left not in inner:
                text = inner.strip()
    return text


def spell(text: str) -> str:
    """Unicode signs, letters, powers and fractions as LaTeX; compatibility forms (full-width digits and the like) as ASCII."""
    text = RAISED.sub(lambda match: "^{" + match[0].translate(SUPERSCRIPTS) + "}", text)
    text = LOWERED.sub(lambda match: "_{" + match[0].translate(SUBSCRIPTS) + "}", text)
    shown = []
    for character in text:
        if character in VULGAR:
            above, below = VULGAR[character]
            shown.append(rf"\frac{{{above}}}{{{below}}}")
        elif character in GREEK:
            shown.append("\\" + GREEK[character] + " ")
        elif character in SIGNS:
            shown.append(SIGNS[character])
        else:
            shown.append(character if character.isascii() else unicodedata.normalize("NFKC", character))
    return "".join(shown)


def _dollars(text: str) -> str:
    r"""Math delimiters removed, dollar signs before an amount kept as `\$`."""
    text = text.replace("\\$", "¤")
    if text.count("$") % 2:
        text = re.sub(r"\$(?=\s*[\d.])", "¤", text)
    return text.replace("$", "").replace("¤", "\\$")


def words(text: str) -> str | None:
    r"""The lower-case words of an answer that is made of words or one letter; None for anything with other symbols.

    Example: words(r"\text{(B)}") == "b"; words("No solution") == "no solution"; words("2x") is None
    """
    if WORDING.search(text) and re.search(r"[^\W_]", WORDING.sub("", text)):
        return None
    shown = SPACE.sub(" ", WORDING.sub(r" \1 ", text)).strip(" .!")
    inner = re.fullmatch(r"\(\s*([A-Za-z ]+)\s*\)", shown)
    shown = inner[1] if inner else shown
    said = LETTERS.fullmatch(shown) and (is_wording(text) or "-" not in shown or re.search(r"[^\W\d_]{3}", shown))
    return re.sub(r"\s+", " ", shown).casefold() if said else None


def is_wording(text: str) -> bool:
    r"""Whether the whole text is set as words: `\text{yes}`."""
    return WORDING.fullmatch(bare(text)) is not None


def flat(text: str) -> str:
    """The text with one pair of brackets for each run of pairs that directly enclose one another: ((x)) is (x)."""
    open_: list[int] = []
    partner: dict[int, int] = {}
    for place, character in enumerate(text):
        if character in "({":
            open_.append(place)
        elif character in ")}" and open_ and (text[open_[-1]], character) in (("(", ")"), ("{", "}")):
            partner[open_.pop()] = place
    idle = {place for left, right in partner.items() if text[left + 1] == text[left] and partner.get(left + 1) == right - 1
            for place in (left, right)}
    return "".join(character for place, character in enumerate(text) if place not in idle)


def depth(text: str) -> int:
    """How deep the brackets of a text are nested."""
    deepest = level = 0
    for character in text:
        level += (character in OPENING) - (character in CLOSING)
        deepest = max(deepest, level)
    return deepest
