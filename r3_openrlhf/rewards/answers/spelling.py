r"""One spelling for what is written in many: Unicode signs, fonts, sizes of brackets, \frac without braces.

Applied before any comparison, to answer and reference alike. Linear time: the text is hostile.
"""

from __future__ import annotations

import re
import unicodedata

from r3_openrlhf.rewards.answers.choices import stated_choice
from r3_openrlhf.rewards.answers.comparison import number, numbers_agree
from r3_openrlhf.rewards.answers.extraction import FULL_WIDTH, UPRIGHT
from r3_openrlhf.rewards.answers.number_words import value_in_words
from r3_openrlhf.rewards.answers.units import in_one_unit

_FRACTIONS = {
    "½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4), "⅕": (1, 5), "⅖": (2, 5), "⅗": (3, 5),
    "⅘": (4, 5), "⅙": (1, 6), "⅚": (5, 6), "⅛": (1, 8), "⅜": (3, 8), "⅝": (5, 8), "⅞": (7, 8),
}  # fmt: skip
_SIGNS = {
    "−": "-", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "±": r"\pm ", "×": r"\times ", "÷": r"\div ",
    "·": r"\cdot ", "⋅": r"\cdot ", "∅": r"\emptyset ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "≈": r"\approx ",
    "ℝ": r"\mathbb{R}", "⟨": r"\langle ", "⟩": r"\rangle ", "π": r"\pi ", "θ": r"\theta ",
    "¬": r"\neg ", "\u00a0": " ", "\u2009": " ", "\u202f": " ", "∙": r"\cdot ", "∗": "*", "∶": ":", "⁄": "/", "′": "'", "″": "''",
    "∠": r"\angle ", "△": r"\triangle ", "∧": r"\land ", "∨": r"\lor ", "→": r"\to ", "⇒": r"\Rightarrow ", "⊥": r"\perp ",
    "∥": r"\parallel ", "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "∖": r"\setminus ", "°": r"^\circ ",
    "∫": r"\int ", "∑": r"\sum ", "∏": r"\prod ", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}",
    "ⁿ": "^n", "ˣ": "^x", "✓": "", "✔": "", "∎": "", "■": "", "□": "", "。": ".", "，": ",", "\u200b": "", "\ufeff": "",
}  # fmt: skip
_GREEK_LETTERS = dict(
    zip(
        "αβγδεζηικλμνξρστυφχψωΓΔΘΛΞΠΣΦΨΩ",
        "alpha beta gamma delta epsilon zeta eta iota kappa lambda mu nu xi rho sigma tau upsilon phi chi psi omega"
        " Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega".split(),
        strict=True,
    )
)
_UNICODE = str.maketrans(_SIGNS | {sign: rf"\frac{{{top}}}{{{bottom}}}" for sign, (top, bottom) in _FRACTIONS.items()})
_UNICODE |= str.maketrans({letter: rf"\{name} " for letter, name in _GREEK_LETTERS.items()})
_UNICODE |= FULL_WIDTH
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_MATH_LETTERS = re.compile("[\U0001d400-\U0001d7ff]")  # 𝑥 and the like
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_BASES = "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen".split()
_GREEK = r"\\(?:pi|alpha|beta|theta|phi|lambda|mu|omega)(?![a-zA-Z])"
_ARGUMENT = rf"(\{{[^{{}}]*\}}|{_GREEK}|[0-9a-zA-Z])"
_CIRC = r"(?:\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))|°)"

_DEGREES_INSIDE = re.compile(rf"(\d+(?:\.\d+)?)\s*{_CIRC}")


def _in_radians(match: re.Match) -> str:
    r"""\sin(90^\circ - as \sin(\frac{90\pi}{180} -."""
    return _DEGREES_INSIDE.sub(r"\\frac{\1\\pi}{180}", match[0])


def _in_cosines(match: re.Match) -> str:
    r"""\operatorname{cis} 60^\circ as (\cos(60^\circ)+i\sin(60^\circ))."""
    angle = (match[1] or match[2] or match[3]).strip()
    return rf"(\cos({angle})+i\sin({angle}))"


def _with_a_fraction(match: re.Match) -> str:
    r"""2^{0.5} as 2^{\frac{5}{10}}."""
    return rf"^{{{match[1]}\frac{{{int(match[2] + match[3])}}}{{{10 ** len(match[3])}}}}}"


def _brackets_turned(match: re.Match) -> str:
    """]2,3[ as (2,3): brackets that look away leave the end out."""
    return f"{'[('[match[1] == ']']}{match[2]}{'])'[match[3] == '[']}"


# what is said of a subject before a number: "He needs", "The area is"; never with a word that takes the number back
_NO_HEDGE = (
    r"(?![^{}]*(?:\b(?i:not|never|no|neither|either|least|most|more|less|than|between|or|but|without|wrong|incorrect|false|except|half|twice"
    r"|double|triple|minus|negative|over|under|above|below|almost|nearly|up to|if)\b|n['’]t\b))"
)

_PIECES = re.compile(r"\\\\[a-zA-Z]*|\\.|\[\^?\]?(?:\\.|[^\]])*\]|.", re.DOTALL)


def _needed(pattern: str) -> str:
    r"""The longest command, or sign beyond ASCII, without which a pattern cannot match ("\text"); "": there is none.

    To look for it costs a tenth of a search, and most texts have few commands.
    """
    depth, found = 0, [""]
    pieces = _PIECES.findall(pattern)
    for piece, following in zip(pieces, [*pieces[1:], ""], strict=True):
        depth += (piece == "(") - (piece == ")")
        if depth == 0 and piece == "|":
            return ""
        may_lack = following in {"?", "*", "{"}
        if depth == 0 and piece.startswith("\\\\") and not (may_lack and len(piece) == 2):
            found.append(piece[1:-1] if may_lack else piece[1:])
        elif depth == 0 and not piece.isascii() and len(piece) == 1 and not may_lack:
            found.append(piece)
    return max(found, key=len)


_ANSWER_WORDS = "réponse|respuesta|resposta|antwort|risposta|ответ|答案"
_REWRITES = [
    (_needed(pattern), re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+", lambda m: "^{" + m[0].translate(_SUPERSCRIPTS) + "}"),
        (r"[₀₁₂₃₄₅₆₇₈₉]+", lambda m: "_{" + m[0].translate(_SUBSCRIPTS) + "}"),
        (r"∛\s*(\d+|[a-zA-Z])", r"\\sqrt[3]{\1}"),
        (r"(?<=[\w)}])\*\*(?=[\w({-])", "^"),
        (r"(^|[(\[{,=]) *(?:—|\\minus(?![a-zA-Z])) *(?=[\d\\.(a-zA-Z])", r"\1-"),
        (r"\\(?:ast|star)(?![a-zA-Z])", "*"),
        (r"\\surd(?![a-zA-Z])", "√"),
        (r"\\root\s*\{?(\w)\}?\s*\\of\s*(?:\{([^{}]*)\}|(\w))", lambda m: rf"\sqrt[{m[1]}]{{{m[2] or m[3]}}}"),
        (r"\\not\s*=", r"\\neq "),
        (r"\\backslash(?![a-zA-Z])", r"\\setminus "),
        (r"\\(?:dots[cbm]?|ldots|cdots)(?![a-zA-Z])|(?<=,)\s*\.{3}\s*(?=,)|…", r"\\ldots "),
        (r"\\lg(?![a-zA-Z])", r"\\log_{10}"),
        (r"\\(text|mathrm|mathbb|mathbf|mathit|hat|vec)\s+([a-zA-Z])(?![a-zA-Z])", r"\\\1{\2}"),
        (r"\\mathbb\s*([A-Z])(?![a-zA-Z])", r"\\mathbb{\1}"),
        (rf"\\d?binom(?![a-zA-Z])\s*{_ARGUMENT}\s*{_ARGUMENT}", lambda m: rf"\binom{_braced(m[1])}{_braced(m[2])}"),
        (rf"{_CIRC}\s*(?:\\(?:text|mathrm)\s*\{{\s*)?([CF])\s*\}}?\s*$", lambda m: rf"\text{{ {'celsius' if m[1] == 'C' else 'fahrenheit'}}}"),
        (r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        # units as a fraction, and with a prefix in Greek
        (r"\\frac\s*\{\s*\\(?:mathrm|text)\s*\{([a-zA-Z]+)\}\s*\}\s*\{\s*\\(?:mathrm|text)\s*\{([a-zA-Z]+)\}\s*(\^\s*\{?[23]\}?)?\s*\}\s*$",
         lambda m: rf"\text{{{m[1]}/{m[2]}{m[3] or ''}}}"),
        (r"(?<=\d)(?:\s|\\[,;: ])*\\mu\s*\\(?:mathrm|text)\s*\{([a-zA-Z])\}", r"\\text{µ\1}"),
        (r"(?:\s|\\[,;: ])*\\(?:mathrm|text)\s*\{\s*([kM]?)\s*\\Omega\s*\}$|(?<=[\d}])(?:\s|\\[,;: ])*\\Omega$", lambda m: rf"\text{{{m[1] or ''}Ω}}"),
        (r"\(\s*(\d+)\s*\)\s*_", r"\1_"),
        (r"(?<=\d)\s*\\text\s*\{\s*and (?:a|one)[ -]half\b\s*([^{}]*)\}$", r"\\frac{1}{2}\\text{\1}"),
        (r"^\\text\s*\{\s*([IVX]+(?: and [IVX]+)*) only\s*\}$", r"\\text{\1}"),
        (rf"^\\text\s*\{{\s*(?:[Ll]a |[Ll]e |[Dd]ie |[Aa] )?(?i:{_ANSWER_WORDS})\s*(?:est|es|é|ist|è|是|为)?\s*[:：]?\s*\}}(?=\S)", ""),
        (r"(?<=\d)\s*\\text\s*\{\s*(?:in )?(?:base|Base)\s*\}?\s*(\d+)\s*\}?$", r"_\1"),
        (r"((?:[a-zA-Z0-9]|\([^()]*\))!)\s*\^", r"(\1)^"),
        (r"(?<![\\a-zA-Z])(?:a|arc)(sin|cos|tan)(?=\s*\()", r"\\arc\1"),
        (r"(?<![\\a-zA-Z])(exp|sinh|cosh|tanh)(?=\s*\()", r"\\\1"),
        (r"(?<![\\a-zA-Z])abs\s*\(([^()]*)\)", r"|\1|"),
        (UPRIGHT.pattern, r"\1"),
        (r"(?:\\(?:operatorname|mathrm|text)\s*\{\s*cis\s*\}|\\?(?<![a-zA-Z])cis(?![a-zA-Z]))\s*(?:(?:\\left)?\(([^()]*?)(?:\\right)?\)|\{([^{}]*)\}|(\d+(?:\.\d+)?(?:\s*\^\s*\{?\s*\\circ\s*\}?)?|\\(?:pi|theta|phi|alpha)(?![a-zA-Z])))", _in_cosines),
        (r"(?<![\\a-zA-Z])(arcsin|arccos|arctan|sin|cos|tan|cot|sec|csc|log|ln)(?=\s*[({\\\d^_])", r"\\\1"),
        (r"(?<![\\a-zA-Z{])(?:(?<=\d)|\b)pi(?![a-zA-Z])(?!\})", r"\\pi "),
        (r"(?<![\\a-zA-Z])oo(?![a-zA-Z])", r"\\infty "),
        (r"\^\s*\{?(\d+)\}?\s*/\s*_\s*\{?(\d+)\}?", r"\\frac{\1}{\2}"),
        (r"\^\s*\{\s*(-?)(\d*)\.(\d{1,3})\s*\}", _with_a_fraction),
        (r"^\s*(\d{1,3}(?:\.\d{3}){2,})\s*$", lambda m: m[1].replace(".", "")),
        (r"(?<=[\d.])\\bar\s*\{?\s*(\d+)\s*\}?", r"\\overline{\1}"),
        (r"([\[\]])([^\[\]()]*[,;][^\[\]()]*)([\[\]])(?=\s*(?:$|\\cup|\\cap))", _brackets_turned),
        (r"\(\s*\\text\s*\{([^{}]*)\}\s*\)\s*$", r"\\text{ \1}"),
        (r"\\text\s*\{\s*=\s*\}", "="),
        (r"\\text\s*\{\s*(?:minus|negative)\s*\}\s*(?=[\d\\])|(?<![a-zA-Z])(?:minus|negative)\s+(?=\d)", "-"),
        (r"\\(?:textcolor|color|colorbox)\s*\{\s*\w+\s*\}", ""),
        (r"\\tag\*?\s*\{[^{}]*\}|\\(?:blacksquare|square|Box|qed|checkmark)(?![a-zA-Z])\s*$|^\s*\\checkmark(?![a-zA-Z])", ""),
        (r"\\(?:emph|textsf|texttt|textsc|textup|textsl)\s*\{", r"\\text{"),
        (r"\\(?:rm|it|bf|sf|tt)\s*\{([^{}]*)\}|\{\s*\\(?:rm|it|bf|sf|tt)\s+([^{}]*)\}", lambda m: rf"\text{{{m[1] or m[2]}}}"),
        (r"\\(?:tiny|small|normalsize|large|Large|LARGE|huge|Huge|bf|rm|it|sf|tt|bfseries)(?![a-zA-Z])", ""),
        (r"\\left\s*\.(?=.*\\right\s*\.)|\\right\s*\.", ""),
        (r"^(?:\s|\\[ ,;:!])+|(?:\s|\\[ ,;:!])+$", ""),
        (r"^[,;]\s*|\s*[,;]$", ""),
        (r"^(?:\\(?:therefore|implies|Rightarrow|Longrightarrow|rightarrow|to|because)(?![a-zA-Z])\s*)+", ""),
        (r"^(?:`+|\"|“|‘)([^`\"“”'‘’]+)(?:`+|\"|”|’|'')$", r"\1"),
        (r"^_(\w+)_$", r"\1"),
        (r"\\degree(?![a-zA-Z])|(?<=\d)\^\s*(?:\{\s*o\s*\}|o(?![a-zA-Z]))", r"^\\circ "),
        (r"(?<=\d)\s*[xX]\s*(?=10\s*\^)", r"\\times "),
        (r"\\mathrm\s*\{\s*d\s*\}(?=\s*(?:[a-zA-Z]|\}|\^))", "d"),
        (r"^\s*(?:\\text\s*\{\s*)?US(?:D|(?=\s*\}?\s*\\?\$))\s*\}?\s*(?:\\?\$)?\s*(?=\d)", r"\\$"),
        (r"^\s*(?:\\text\s*\{\s*)?Rs\.?\s*\}?\s*(?=\d)", "₹"),
        (r"\\pounds(?![a-zA-Z])\s*", "£"),
        (r"^\s*([a-zA-Z])\s*:\s*([a-z])\s*\\mapsto(?![a-zA-Z])", r"\1(\2)="),
        (r"^\s*([a-z])\s*\\mapsto(?![a-zA-Z])", r"f(\1)="),
        (r"^\s*(?:\\ell|[lLd])\s*:\s*(?=[^=]*=[^=]*$)", ""),
        (r"\\Pr(?![a-zA-Z])", "P"),
        (r"^\s*(\d+)\s*(?:\\text\s*\{\s*to\s*\}|\bto\b)\s*(\d+)\s*$", r"\1:\2"),
        (r"^\s*(\d+)\s*\\text\s*\{\s*out of\s*\}\s*(\d+)\s*$", r"\\frac{\1}{\2}"),
        (r"^\s*(?:[Tt]he\s+)?(?:[Ff]inal\s+)?(?:[Aa]nswer|[Rr]esult|[Tt]otal)(?:\s*[:=]|\s+is\b)\s*(?=\S)", ""),
        (r"^\s*\\(?:text|textbf|mathrm)\s*\{\s*(?:Answer|Ans|Result|Total)\s*[.:]?\s*\}\s*[:=]?\s*(?=\S)", ""),
        (r"^\s*\\text\s*\{\s*(?:[Tt]here (?:are|is)|[Tt]he number(?: of [a-z ]+)?(?: is)?|[Nn]umber of [a-z ]+:|(?:[Hh]e|[Ss]he|[Ii]t|[Tt]hey|[Ww]e) (?:has|have|had|is|are)|about|approximately|exactly|[Gg]rade|[Yy]ear|[Dd]ay)\s*\}\s*(?=[-+\d\\])", ""),
        (r"^\s*\\text\s*\{\s*(?:[Tt]here (?:are|is) |(?:[Hh]e|[Ss]he|[Ii]t|[Tt]hey|[Ww]e) (?:has|have|had|is|are) |the )?([-+]?\d[\d,]*(?:\.\d+)?)(?:st|nd|rd|th)?\s+((?:[a-z]+ ?){1,4})\.?\s*\}\s*$", r"\1\\text{ \2}"),
        (rf"^\s*\\(?:text|textrm|mathrm|textbf|mathbf)\s*\{{{_NO_HEDGE}[^{{}}]*(?:\b(?:is|are|was|were|equals)|[:=])\s*\}}\s*(?=[-+\d\\$(a-zA-Z])", ""),
        (rf"^\s*\\text\s*\{{{_NO_HEDGE}\s*(?:[Hh]e|[Ss]he|[Ii]t|[Tt]hey|[Ww]e|[Yy]ou|I|[A-Z][a-z]+) (?:will |can |must |would )?[a-z]+ ?\}}\s*(?=[-+\d\\$])", ""),
        (r"^\s*the\s+(?=\d)", ""),
        (r"(?<=\d)\s*\^\s*\{\s*\\underline\s*\{\s*(?:st|nd|rd|th)\s*\}\s*\}", ""),
        (r"^\s*\\(?:text|textrm|mathrm|mathbf|textbf)\s*\{(?:\s|\\ )*(?:[Tt]herefore|[Tt]hus|[Hh]ence|[Ss]o)(?:,|:|\s|\\ )*(?:it is|we get|we have)?(?:,|:|\s|\\ )*\}(?:\s|\\[ ,;:!])*", ""),
        (r"^\s*[=:]\s*(?=[^\s>=])", ""),
        (r"^\s*\\(?:text|textrm|mathrm|textbf|mathbf)\s*\{(?![^{}]*\bnot\b)[^{}]*\b(?:[Aa]nswer|[Rr]esult|[Vv]alue|[Ss]olution|[Tt]otal)\b[^{}]*(?:\b(?:is|are|equals)|:)(?:\s|\\ )*\}(?:\s|\\[ ,;:!])*", ""),
        (r"(?<=\d)\s*\^?\s*\{?\s*\\(?:text|textrm|mathrm|textsuperscript)\s*\{\s*(?:st|nd|rd|th)\s*\}\s*\}?", ""),
        (r"(?<=\d)(?:st|nd|rd|th)\b|(?<=\d)\^\s*\{\s*(?:st|nd|rd|th)\s*\}", ""),
        (r"\\(?:lnot|sim)(?![a-zA-Z])|((?:^|\(|\\(?:land|lor|wedge|vee|to|rightarrow)(?![a-zA-Z]))\s*)~(?=\s*[a-zA-Z(])", r"\1\\neg "),
        (r"√\s*(\d+|[a-zA-Z])", r"\\sqrt{\1}"),
        (r"√\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"(^|[(\[{,=]) *– *(?=[\d\\.(a-zA-Z])", r"\1-"),  # an en dash as sign, not in "5–7"
        (r"\\(?:[bB]igg?[lrm]?|displaystyle|textstyle)(?![a-zA-Z])", ""),
        (r"\\(?:hspace|vspace|phantom)\*?\s*\{[^{}]*\}", " "),
        (r"\{:\}", ":"),
        (r"^\s*\\(?:approx|simeq)(?![a-zA-Z])", ""),
        (r"^\s*(?:\\text\s*\{\s*)?(?:[Oo]ption|[Cc]hoice)\s+\(?([A-J])\)?\s*\}?\s*$", r"\1"),
        (r"^\s*\\text\s*\{\s*(?:an?|the)\s+", r"\\text{"),
        (r"^\s*\\text\s*\{[^{}]*\}\s*=(?!.*=)", ""),  # "\text{Area} = 12"
        (r"\\varnothing(?![a-zA-Z])", r"\\emptyset"),
        (r"\\overline\s*\{\s*([A-Z]'?\s*[A-Z]'?)\s*\}", r"\1"),  # a segment; of digits it is a period
        (r"\\left\s*(?:<|\\langle(?![a-zA-Z]))|\\langle(?![a-zA-Z])", "("),
        (r"\\right\s*(?:>|\\rangle(?![a-zA-Z]))|\\rangle(?![a-zA-Z])", ")"),
        (rf"\\[dtc]?frac(?![a-zA-Z])\s*{_ARGUMENT}\s*{_ARGUMENT}(?!\d)", lambda m: rf"\frac{_braced(m[1])}{_braced(m[2])}"),
        (r"^\s*([+-]?\d+)\s+(\d+)\s*/\s*(\d+)(?![\d./])", r"\1\\frac{\2}{\3}"),  # the mixed number 3 1/2
        (r"^\s*([-+]?[\d.,]+(?:/\d+)?)\s*=\s*([a-zA-Z])\s*$", r"\2=\1"),
        (r"^\s*([-+]?\d+\.\d*)\((\d+)\)\s*$", r"\1\\overline{\2}"),
        (r"(?<=[\d.])\\dot\s*\{?(\d)\}?(\d*)\\dot\s*\{?(\d)\}?", r"\\overline{\1\2\3}"),
        (r"(?<=[\d.])\\dot\s*\{?(\d)\}?", r"\\overline{\1}"),
        (rf"\\(sin|cos|tan|cot|sec|csc)\s*\^\s*\{{?\s*(\d)\s*\}}?\s*\{{?(\d+)\s*{_CIRC}\s*\}}?", lambda m: rf"(\{m[1]}(\frac{{{m[3]}\pi}}{{180}}))^{m[2]}"),
        (rf"\\(sin|cos|tan|cot|sec|csc)\s*(?:\(\s*(\d+(?:\.\d+)?)\s*{_CIRC}\s*\)|(\d+(?:\.\d+)?)\s*{_CIRC})", lambda m: rf"\{m[1]}(\frac{{{m[2] or m[3]}\pi}}{{180}})"),
        (rf"\\(?:sin|cos|tan|cot|sec|csc)\s*(?:\^\s*\{{?\d\}}?)?\s*(?:\\left)?[({{][^(){{}}]*(?:{_CIRC})", _in_radians),
        (r"_\s*\{\s*(?:\\text\s*\{\s*)?([a-z]{3,8})\s*\}?\s*\}", lambda m: f"_{{{_BASES.index(m[1]) + 2}}}" if m[1] in _BASES else m[0]),
        (r"_\s*\{\s*\(\s*(\d+)\s*\)\s*\}", r"_{\1}"),
    )
]  # fmt: skip
_PLAIN = re.compile(r"[-+]?[0-9]+(?:\.[0-9]+)?|[a-zA-Z]+")
_FONT = re.compile(r"\\(?:boldsymbol|bm|pmb|underline|mathbf|mathit|mathsf|bf)(?![a-zA-Z])\s*\{([^{}]*)\}")
UNEVALUATED = re.compile(
    r"\\(?:i*int|oint|sum|prod|lim|det|gcd|lcm|max|min|nabla)(?![a-zA-Z])|\\operatorname\s*\{\s*(?:gcd|lcm|max|min|det|tr|rank|dim|deg|mod)\s*\}|\\b?mod(?![a-zA-Z])"
    r"|\\frac\s*\{\s*d\s*(?:\(|\\[a-zA-Z]|\d)[^{}]*\}\s*\{\s*d\s*[a-zA-Z]\s*\}"
    r"|\\frac\s*\{\s*(?:d|\\partial)(?:\s*\^\s*\{?\s*\w\s*\}?)?\s*\}\s*\{\s*(?:d|\\partial)\s*[a-zA-Z]"
)
_PLUS_MINUS = re.compile(r"\\(?:pm|mp)(?![a-zA-Z])")
_VALUE_OF = re.compile(r"\s*([a-zA-Z])\s*=([^=]*)")
_ROWS = re.compile(r"\s*\\begin\s*\{(?:aligned|align\*?|gathered|cases|split)\}(.*?)\\end\s*\{\w+\*?\}\s*", re.DOTALL)
_LABELLED = re.compile(
    r"^\s*\\(?:text|textbf|mathrm|mathbf)\s*\{\s*\(([A-J])\)\s*\}(?:\s|\\[ ,;:]|\\quad|~)*(\S.*)$", re.DOTALL
)
_A_LABEL = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{\s*\([A-J]\)\s*\}")
_CHOICE = re.compile(r"\s*(?:\\(?:text|textbf|mathrm|mathbf)\s*\{)?\s*\(?[A-J]\)?\s*\}?\s*\.?\s*")

OR = re.compile(r"\\text\s*\{\s*or\s*\}|\\lor(?![a-zA-Z])|\bor\b")
_TEXT_OR = re.compile(r"\\text\s*\{\s*or\s*\}")
_LOGICAL_OR = re.compile(r"\\(?:lor|vee)(?![a-zA-Z])")
_RELATION = re.compile(r"(<|>|\\[lg]eq?(?:slant)?(?![a-zA-Z]))")
_SET_OF = re.compile(
    r"^\s*\\?\{\s*[a-z]\s*(?:\\in\s*\\mathbb\s*\{?\s*R\s*\}?\s*)?(?:\\mid|\\vert|\||:)([^{}]*[<>=][^{}]*|[^{}]*\\[lg][et][^{}]*)\\?\}\s*$"
)
_FUNCTION_VALUE = re.compile(r"^\s*[a-zA-Z]\s*\(\s*[a-zA-Z]\s*\)\s*=(?!.*=)")
_Y_VALUE = re.compile(r"^\s*y\s*=(?!.*=)")
_ANY_INTEGER = re.compile(
    r"[,;]?\s*(?:\\text\s*\{[^{}]*\}|\\q?quad|\\[ ,;])*\s*\(?(?:\\forall\s*)?[a-z]\s*\\in\s*\\mathbb\s*\{?\s*[ZNRQ]\s*\}?(?:\s*\^\s*\{?[*+]\}?)?\)?\s*$"
)
_FOR_ALL = re.compile(r"[,;]?\s*(?:\\text\s*\{\s*for (?:all|any|every)(?: real)?\s*\}\s*[a-z]|\\forall\s*[a-z])\s*$")
_FROM_ON = re.compile(r"^([^,;]*)[,;]\s*\(?([nkm])\s*(?:\\geq?(?![a-zA-Z])|>=?)\s*\d+\)?\s*$")
_FUNCTION_OF = re.compile(r"^\s*([a-zA-Z])\s*\(\s*([a-z])\s*\)\s*=(?!.*=)")
_A_LETTER = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z](?![a-zA-Z])")
_WHOLE_TEXT = re.compile(r"\s*(?:\\(?:text|mathrm|textbf)\s*\{)?\s*([A-Za-z -]+?)\s*\}?(?: [a-z])?\.?\s*")
_MEANINGS = {
    meaning: sign
    for sign, meanings in {
        r"\emptyset": "none, no solution, no solutions, no real solution, no real solutions, no solution exists, empty set, the empty set",
        r"\mathbb{R}": "all real numbers, all reals, any real number, the real numbers, all real values",
        r"\mathbb{Z}": "all integers, any integer, the integers, every integer",
        r"\mathbb{Z}^+": "all positive integers, any positive integer, positive integers, the positive integers, every positive integer",
        r"\text{DNE}": "does not exist, dne, undefined",
        r"\text{infinitely many}": "infinitely many, infinitely many solutions, infinite solutions, an infinite number of solutions",
        r"\infty": "infinity",
    }.items()
    for meaning in meanings.split(", ")
}
MIN_WRITTEN_OUT = 3  # digits of a period that is written out
_WRITTEN_OUT = re.compile(r"([-+]?\d{0,30}\.\d{0,6}?)(\d{1,6}?)(\2{1,20})\s*(?:\.{3}|\\ldots)")
_COLUMN = re.compile(r"\\begin\s*\{[pb]?matrix\}([^&]*?)\\end\s*\{[pb]?matrix\}", re.DOTALL)
_TWO_ENTRIES = re.compile(r"\\d?binom\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_TUPLE = re.compile(r"\s*(?:\\left)?\((?!\s*\\begin)")
_IN_DOLLARS = re.compile(r"(?<!\\)\$([^$]+)(?<!\\)\$|\\\((.+?)\\\)")
_A_WORD = re.compile(r"(?<![\\a-zA-Z])(?!(?:or|and)\b)[a-zA-Z]{2,}")
_COMMA_OF_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_COMMA_AND_SPACE = re.compile(r",\s")

_NATURAL = re.compile(r"\\log(?![a-zA-Z]|\s*_)")  # beside \ln the natural one
_CHOOSE = re.compile(r"(?<![a-zA-Z])C_\{?([a-z0-9])\}?\^\{?([a-z0-9])\}?")
_UNIT_VECTOR = re.compile(r"\\(?:hat|vec|mathbf)\s*\{\s*\\?[ijk](?:math)?\s*\}")
_TERM = re.compile(
    r"([-+]?\s*[^-+\\]*(?:\\(?:frac|sqrt)[^-+\\]*)?)\\(?:hat|vec|mathbf)\s*\{\s*\\?([ijk])(?:math)?\s*\}\s*"
)
_PROGRESSION = re.compile(r"\s*((?:-?\d{1,9}\s*,\s*){2,9})\\ldots\s*,\s*(-?\d{1,9})\s*")
_WHOLE_RANGE = re.compile(r"\s*(-?\d{1,9})\s*(?:\\leq?|<=)\s*[klmn]\s*(?:\\leq?|<=)\s*(-?\d{1,9})\s*")

_DOMAIN = re.compile(
    r"[,;]?\s*\\text\s*\{\s*(?:for|where|with)\s*\}\s*[a-zA-Z]\s*(?:\\[lg]eq?|>|<|\\neq?)(?![a-zA-Z])[^,;=]*$"
)


def _braced(argument: str) -> str:
    return argument if argument.startswith("{") else f"{{{argument}}}"


def unify(answer: str) -> str:
    """The same answer with LaTeX for Unicode, without fonts and sizes, with braces around arguments."""
    text = answer.strip()
    if _PLAIN.fullmatch(text):
        return r"\pi" if text == "pi" else text
    if not text.isascii():
        text = _MATH_LETTERS.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text).translate(_UNICODE)
    for needed, pattern, replacement in _REWRITES:
        if needed in text:
            text = pattern.sub(replacement, text)
    text = _FONT.sub(r"\1", _FONT.sub(r"\1", text))
    if text.count("=") > 1 and _COMMA_AND_SPACE.search(text):
        text = _COMMA_OF_THOUSANDS.sub("", text)  # "x=1,000, y=2,000"
    return _both_signs(_computed(_once(_system(_without_inner_dollars(text)))))


def _without_inner_dollars(text: str) -> str:
    r"""Mathematics in dollar signs, and other mathematics beside it, as one text: "$\frac12$, x+17"."""
    outside = _IN_DOLLARS.sub(" ", text)
    if outside == text or "$" in outside or _A_WORD.search(outside):
        return text
    return _IN_DOLLARS.sub(lambda match: match[1] or match[2], text)


def _system(text: str) -> str:
    r"""\begin{cases} x=1 \\ y=2 \end{cases} as x=1, y=2; only where every row says what a letter is."""
    rows = _ROWS.fullmatch(text)
    if rows is None:
        return text
    said = [row.replace("&", " ") for row in rows[1].split("\\\\") if row.strip()]
    found = [match for row in said if (match := _VALUE_OF.fullmatch(row))]
    return ", ".join(f"{row[1]}={row[2].strip()}" for row in found) if len(found) == len(said) else text


def _once(text: str) -> str:
    """A number that is said twice, "1/2 or 0.5", once."""
    ways = OR.split(text)
    numbers = [found for way in ways if (found := number(way))] if len(ways) > 1 else []
    same = len(numbers) == len(ways) > 1 and all(numbers_agree(numbers[0], other) for other in numbers)
    return ways[0] if same else text


def _computed(text: str) -> str:
    r"""What \sum_{k=1}^{4} k = 10 comes to: 10."""
    if not UNEVALUATED.search(text) or "=" not in text or re.search(r"=[^=]*,[^=]*=", text):
        return text
    depth, last = 0, -1
    for position, character in enumerate(text):
        depth += (character in "{(") - (character in "})")
        if character == "=" and depth == 0:
            last = position
    return text[last + 1 :].strip() or text


def _both_signs(text: str) -> str:
    r"""\frac{-1\pm\sqrt{5}}{2} as a list of two; a sign outside of braces is left to math-verify."""
    signs = _PLUS_MINUS.findall(text)
    if (
        len(signs) != 1
        or "," in text
        or text.count("{", 0, text.index(signs[0])) == text.count("}", 0, text.index(signs[0]))
    ):
        return text
    upper, lower = ("+", "-") if signs[0] == "\\pm" else ("-", "+")
    return f"{_PLUS_MINUS.sub(upper, text)}, {_PLUS_MINUS.sub(lower, text)}"


def align(answer: str, reference: str) -> tuple[str, str]:
    r"""Both, where one says more than the other about the same thing, in the form that both have.

    "f(x)=2x" and "y=2x" are both 2x; "x=1, y=2" beside a pair (1,2) becomes the pair, its variables in alphabetical order; "\textbf{(E)} 12" beside 12
    becomes 12, beside E it becomes E; "x < 1 or x > 2" beside a union becomes a union; "k \in \mathbb{Z}" is left out
    where the other does not say it.
    """
    if answer.isdecimal() and reference.isdecimal():
        return answer, reference
    return in_one_unit(_beside(answer, reference), _beside(reference, answer))


def _words_beside(text: str, other: str) -> str:
    """A text that says in words what the other says by a sign: "no solution" beside the empty set."""
    words = _WHOLE_TEXT.fullmatch(text)
    if words is None:
        return text
    if (said := number(other)) is not None and (value := value_in_words(words[1])) is not None:
        return other if value == said.value else str(value)
    sign, meant = _MEANINGS.get(words[1].lower()), other.strip()
    if sign is not None and (alike := _WHOLE_TEXT.fullmatch(other)):
        meant = _MEANINGS.get(alike[1].lower(), meant)
    return sign if sign is not None and sign == meant.replace("{+}", "+") else text


def _renamed(text: str, other: str) -> str:
    """ "f(n)=n+1" beside "f(x)=x+1": the variable of a function may have any name."""
    own, wanted = _FUNCTION_OF.match(text), _FUNCTION_OF.match(other)
    if own and _Y_VALUE.match(other):  # "h(t)=2t+3" beside "y=2x+3"
        letters = set(_A_LETTER.findall(other.partition("=")[2]))
        said = text.partition("=")[2]
        if len(letters) == 1 and letters.isdisjoint(_A_LETTER.findall(said)):
            return "y=" + re.sub(rf"(?<![\\a-zA-Z]){own[2]}(?![a-zA-Z])", letters.pop(), said)
    if not own or not wanted or own[1] != wanted[1] or own[2] <= wanted[2]:
        return text
    if re.search(rf"(?<![\\a-zA-Z]){wanted[2]}(?![a-zA-Z])", text):
        return text  # it says something else there
    return re.sub(rf"(?<![\\a-zA-Z]){own[2]}(?![a-zA-Z])", wanted[2], text)


def _in_signs_of(text: str, other: str) -> str:
    """A text with the functions and the order of signs that the other uses for the same thing."""
    if "\\ln" in other and "\\log" not in other:
        text = _NATURAL.sub(r"\\ln", text)
    if "\\binom" in other:
        text = _CHOOSE.sub(r"\\binom{\1}{\2}", text)
    if "," in other and len(_PLUS_MINUS.findall(text)) == 1 and "," not in text:
        text = f"{_PLUS_MINUS.sub('+', text)}, {_PLUS_MINUS.sub('-', text)}"
    if other[:1] == "(" and (coordinates := _coordinates(text)):
        return coordinates
    if "\\ldots" in other and (steps := _progression(text)) and steps == _progression(other):
        return "{},{},\\ldots,{}".format(*steps)
    return text


def _beside(text: str, other: str) -> str:
    text = _in_signs_of(text, other)
    text = _as_column(_as_period(_renamed(_words_beside(text, other), other), other), other)
    if _CHOICE.fullmatch(other) and (letter := stated_choice(text)):
        return letter
    if (labelled := _LABELLED.match(text)) and not _A_LABEL.search(labelled[2]):
        if _CHOICE.fullmatch(other):
            return labelled[1]
        return text if _LABELLED.match(other) else labelled[2]
    text = _LOGICAL_OR.sub(" or ", text) if "=" in text else text  # "x=1 \\lor x=2"
    if (described := _SET_OF.match(_TEXT_OR.sub(" or ", text))) and not _SET_OF.match(other):
        text = described[1].rstrip("\\ ").strip()
    if _FUNCTION_VALUE.match(text) and _Y_VALUE.match(other) or _Y_VALUE.match(text) and _FUNCTION_VALUE.match(other):
        return text.partition("=")[2].strip()  # "f(x) = 2x" beside "y = 2x"
    parts = text.split(",")
    values = [match for part in parts if (match := _VALUE_OF.fullmatch(part))]
    if len(parts) == len(values) == len({value[1] for value in values}) > 1 and other.strip().startswith(
        ("(", "\\left(")
    ):
        return "(" + ",".join(value[2].strip() for value in sorted(values, key=lambda value: value[1])) + ")"
    if "\\cup" in other and "\\cup" not in text:
        return _as_union(text)
    if "\\in" not in other and "\\forall" not in other:
        text = _FOR_ALL.sub("", _ANY_INTEGER.sub("", text)) or text
    if not re.search(r"[,<>]|\\g", other) and (begun := _FROM_ON.match(text)) and begun[2] in begun[1]:
        text = begun[1]
    return _DOMAIN.sub("", text) if "\\text" not in other else text


def _coordinates(text: str) -> str | None:
    r"""2\hat{i}+7\hat{j} as (2,7), or (2,7,0) where a third one is said."""
    if not _UNIT_VECTOR.search(text):
        return None
    said = {match[2]: match[1].replace(" ", "") for match in _TERM.finditer(text)}
    if _TERM.sub("", text).strip() or not said:
        return None
    values = [said.get(name, "0") for name in ("ijk" if "k" in said else "ij")]
    return "(" + ",".join({"": "1", "+": "1", "-": "-1"}.get(value, value.lstrip("+")) for value in values) + ")"


def _progression(text: str) -> tuple[int, int, int] | None:
    r"""First, second and last number of "1, 2, 3, \ldots, 50" and of "1 \le n \le 50"."""
    if whole := _WHOLE_RANGE.fullmatch(text):
        return int(whole[1]), int(whole[1]) + 1, int(whole[2])
    row = _PROGRESSION.fullmatch(text)
    numbers = list(map(int, row[1].replace(" ", "").rstrip(",").split(","))) if row else []
    if row is None or any(b - a != numbers[1] - numbers[0] for a, b in zip(numbers, numbers[1:], strict=False)):
        return None
    return numbers[0], numbers[1], int(row[2])


def _as_period(text: str, other: str) -> str:
    r"""0.1666... beside an exact number as 0.1\overline{6}; not the decimals of an irrational number, which may repeat by accident."""
    found = _WRITTEN_OUT.fullmatch(text.strip()) if text.rstrip().endswith(("ldots", "...")) else None
    exact = number(other) if found else None
    if found is None or exact is None or "." in exact.text and "overline" not in other:
        return text
    return rf"{found[1]}\overline{{{found[2]}}}" if len(found[2] + found[3]) >= MIN_WRITTEN_OUT else text


def _as_column(text: str, other: str) -> str:
    """A column beside a pair as the pair; a binomial coefficient beside a column as the column, which may look the same."""
    if "{pmatrix}" not in text and "{bmatrix}" not in text and "binom" not in text and "{matrix}" not in text:
        return text
    if (column := _COLUMN.fullmatch(text.strip())) and _TUPLE.match(other):
        entries = [entry.strip() for entry in column[1].split("\\\\") if entry.strip()]
        return "(" + ",".join(entries) + ")" if len(entries) > 1 and "," not in column[1] else text
    if (two := _TWO_ENTRIES.fullmatch(text.strip())) and _COLUMN.fullmatch(other.strip()):
        return rf"\begin{{pmatrix}}{two[1]}\\{two[2]}\end{{pmatrix}}"
    return text


def _as_union(text: str) -> str:
    """Inequalities in one variable, with "or" between them, as a union of intervals; other texts as they are."""
    intervals, names = [], set()
    for part in OR.split(text):
        sides = [side.strip() for side in _RELATION.split(part)]
        downwards = {">" in relation or "\\g" in relation for relation in sides[1::2]}
        if len(sides) not in (3, 5) or len(downwards) > 1:
            return text
        if downwards == {True}:
            sides.reverse()
        if len(sides) == 3:
            sides = ["-\\infty", "<", *sides] if sides[0].isalpha() else [*sides, "<", "\\infty"]
        low, first, name, second, high = sides
        names.add(name)
        intervals.append(f"{'[('[first in '<>']}{low},{high}{'])'[second in '<>']}")
    return "\\cup ".join(intervals) if len(names) == 1 and names.pop().isalpha() else text
