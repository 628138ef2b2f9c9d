"""A made-up problem for each kind of answers: its reference (one of them is drawn), the same answer in other spellings, and near
neighbours. A function draws one problem."""

import datetime
import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import NamedTuple


@dataclass(frozen=True)
class Siblings:
    """A problem, spellings of its reference, further right answers, wrong ones that look like them."""

    problem: str
    references: list[str]
    equal: list[str]
    unequal: list[str]


class Draw(NamedTuple):
    """How siblings are drawn, and the kind that their reference is of; "": mathematics."""

    draw: Callable[[Random], Siblings]
    kind: str | None


SIBLINGS: dict[str, Draw] = {}


def siblings_of(name: str, *, kind: str | None = None):
    """Enter a function under `name`. kind: that of its references where it has another name."""

    def enter(draw):
        SIBLINGS[name] = Draw(draw, kind)
        return draw

    return enter


@siblings_of("chemical formula")
def draw_chemical_formula(rng):
    a, b = rng.choice(
        [("H", "O"), ("C", "O"), ("N", "H"), ("Fe", "Cl"), ("S", "O"), ("Na", "S"), ("Al", "O")]
    )
    n = rng.randint(2, 5)
    m = rng.randint(6, 9)
    return Siblings(
        problem="Which compound is formed?",
        references=[
            f"{a}_{n}{b}_{m}",
            rf"\ce{{{a}{n}{b}{m}}}",
            rf"\mathrm{{{a}_{n}{b}_{m}}}",
            f"{a}_{{{n}}}{b}_{{{m}}}",
        ],
        equal=[rf"\text{{{a}}}_{n}\text{{{b}}}_{m}", rf"\text{{{a}{n}{b}{m}}}"],
        unequal=[
            f"{b}_{m}{a}_{n}",
            f"{a}_{n + 1}{b}_{m}",
            f"{a}_{n}",
            f"{a}_{m}{b}_{n}",
            f"{a.lower()}_{n}{b}_{m}",
            f"{a}_{n}{b}_{m}^{{2-}}",
        ],
    )


@siblings_of("choice")
def draw_choice(rng):
    w, x, y, z = rng.sample(range(10, 99), 4)
    i = rng.randrange(4)
    letter = "ABCD"[i]
    other_letter = "BCDA"[i]
    both_letters = "ABCD"[i] + "BCDA"[i]
    return Siblings(
        problem=f"Which? (A) {w} (B) {x} (C) {y} (D) {z}",
        references=[
            str(letter),
            f"({letter})",
            f"{letter}.",
            rf"\text{{{letter}}}",
            f"Option {letter}",
            rf"\text{{choice ({letter})}}",
        ],
        equal=[
            rf"\textbf{{({letter})}} {(w, x, y, z)[i]}",
            f"{letter}) {(w, x, y, z)[i]}",
            rf"\text{{Option {letter}}}",
            f"{(w, x, y, z)[i]}",
            rf"\text{{{letter}, because {other_letter} is wrong}}",
            rf"\text{{The answer is {letter}}}",
        ],
        unequal=[
            str(other_letter),
            f"{letter}, {other_letter}",
            rf"{letter}\text{{ or }}{other_letter}",
            f"{(w, x, y, z)[i - 1]}",
            str(both_letters),
            f"({letter}) ({other_letter})",
            "7",
            f"({other_letter}) {(w, x, y, z)[i]}",
            f"({letter}) {(w, x, y, z)[i - 1]}",
        ],
    )


@siblings_of("base")
def draw_base(rng):
    b = rng.randint(2, 9)
    d = "1" + "".join(str(rng.randrange(b)) for _ in range(rng.randint(3, 7))) + "1"
    return Siblings(
        problem=f"Write it in base {b}.",
        references=[f"{d}_{b}"],
        equal=[
            f"{d}_{{{b}}}",
            f"({d})_{b}",
            rf"{d}\text{{ base }}{b}",
            str(d),
            rf"\text{{{d} in base {b}}}",
            rf"{d}_{{\text{{{b}}}}}",
        ],
        unequal=[f"{d}_{b + 1}", f"{d[:-1]}0{d[-1]}_{b}", f"{int(d, b)}"],
    )


@siblings_of("date")
def draw_date(rng):
    m = rng.randint(1, 12)
    y = rng.randint(1800, 2100)
    d = rng.randint(13, 28)
    name = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ][m - 1]
    month_of_two_digits = f"{m:02}"
    german_month = [
        "Januar",
        "Februar",
        "März",
        "April",
        "Mai",
        "Juni",
        "Juli",
        "August",
        "September",
        "Oktober",
        "November",
        "Dezember",
    ][m - 1]
    french_month = [
        "janvier",
        "février",
        "mars",
        "avril",
        "mai",
        "juin",
        "juillet",
        "août",
        "septembre",
        "octobre",
        "novembre",
        "décembre",
    ][m - 1]
    next_month = f"{m % 12 + 1:02}"
    return Siblings(
        problem="On what date does it end?",
        references=[
            f"{name} {d}, {y}",
            rf"\text{{{name} {d}, {y}}}",
            f"{d} {name} {y}",
            f"{y}-{month_of_two_digits}-{d}",
            f"{name[:3]} {d}, {y}",
            f"{m}/{d}/{y}",
            f"{y}/{m}/{d}",
            f"the {d}th of {name} {y}",
        ],
        equal=[f"{d}. {german_month} {y}", f"{y}年{m}月{d}日", f"le {d} {french_month} {y}"],
        unequal=[
            f"{name} {d - 1}, {y}",
            f"{y}-{next_month}-{d}",
            f"{y + 1}-{month_of_two_digits}-{d}",
            f"{y - m - d}",
            str(name),
            str(y),
            f"{m}/{d + 1}",
        ],
    )


@siblings_of("JSON")
def draw_json(rng):
    a = rng.randint(1, 99)
    b = rng.randint(100, 999)
    return Siblings(
        problem="As JSON?",
        references=[f'{{"x": {a}, "y": {b}}}'],
        equal=[f'{{"y":{b},"x":{a}}}', f'{{ "y" : {b} , "x": {a} }}'],
        unequal=[
            f'{{"x": {b}, "y": {a}}}',
            f'{{"x": {a}}}',
            f'{{"x": "{a}", "y": {b}}}',
            str(a),
        ],
    )


@siblings_of("labelled parts")
def draw_labelled_parts(rng):
    a = rng.randint(2, 50)
    b = rng.randint(51, 99)
    return Siblings(
        problem="(a) How many? (b) And then?",
        references=[f"(a) {a}; (b) {b}", f"a) {a}, b) {b}", f"(a) {a} (b) {b}"],
        equal=[rf"\text{{(a) }}{a},\ \text{{(b) }}{b}", f"(b) {b}, (a) {a}", f"{a}, {b}"],
        unequal=[
            f"(a) {b}; (b) {a}",
            f"a) {a}, b) {b + 1}",
            str(a),
            f"(a) {a}",
            f"{b}, {a}",
            f"(a) {a}; (b) {b}; (c) 1",
        ],
    )


@siblings_of("ordered list")
def draw_ordered_list(rng):
    a, b, c = sorted(rng.sample(range(2, 60), 3))
    order = rng.choice(
        [
            "from smallest to largest",
            "in increasing order",
            "from least to greatest",
            "smallest first",
            "and sort them from light to heavy",
        ]
    )
    return Siblings(
        problem=f"Write the numbers {order}.",
        references=[f"{a}, {b}, {c}", f"{a},{b},{c}"],
        equal=[
            rf"{a}, {b}\text{{ and }}{c}",
            f"({a}, {b}, {c})",
            f"{a} < {b} < {c}",
            f"{c} > {b} > {a}",
            rf"{a};\ {b};\ {c}",
        ],
        unequal=[
            f"{c}, {b}, {a}",
            f"{b}, {a}, {c}",
            f"{a}, {b}",
            f"{a}, {b}, {c + 1}",
            f"{a}, {b}, {c}, {c}",
            f"{c} < {b} < {a}",
        ],
    )


@siblings_of("prose")
def draw_prose(rng):
    n = rng.randint(2, 99)
    w = rng.choice(["odd", "even", "prime"])
    letter = rng.choice("nkm")
    forms = [
        (f"{w} ${letter}$", rf"\text{{{w} }}{letter}", letter, rf"\text{{not {w} }}{letter}"),
        (
            f"any integer greater than $e^{{{n}}}$",
            rf"\text{{any integer greater than }}e^{{{n}}}",
            f"e^{{{n}}}",
            rf"\text{{any integer less than }}e^{{{n}}}",
        ),
        (
            f"multiples of ${n}$",
            rf"\text{{multiples of }}{n}",
            str(n),
            rf"\text{{multiples of }}{n + 1}",
        ),
    ]
    reference, in_a_box, part, other = forms[rng.randrange(3)]
    return Siblings(problem="", references=[reference], equal=[in_a_box], unequal=[part, other])


@siblings_of("ratio")
def draw_ratio(rng):
    a, b = rng.sample((2, 3, 5, 7, 11), 2)
    return Siblings(
        problem="What is the ratio of red to blue?",
        references=[f"{a}:{b}"],
        equal=[
            f"{3 * a}:{3 * b}",
            rf"{a}\text{{ to }}{b}",
            rf"\frac{{{a}}}{{{b}}}",
            rf"\dfrac{{{a}}}{{{b}}}",
            f"{a} : {b}",
        ],
        unequal=[f"{b}:{a}", f"{a + 1}:{b}", str(a), f"{a}:{b}:1"],
    )


@siblings_of("residue class")
def draw_residue_class(rng):
    m = rng.randint(5, 30)
    r = rng.randint(1, m - 1)
    letter = rng.choice("jkn")
    return Siblings(
        problem="Solve the congruence.",
        references=[
            rf"x\equiv {r}\pmod{{{m}}}",
            rf"x \equiv {r} \bmod {m}",
            f"x={m}{letter}+{r}",
            f"x={r}+{m}{letter}",
        ],
        equal=[
            rf"{r}\pmod{{{m}}}",
            rf"x\equiv {r + m}\pmod{{{m}}}",
            rf"x\equiv {r - m}\pmod {m}",
            rf"x={m}k+{r}, k\in\mathbb{{Z}}",
        ],
        unequal=[
            rf"x\equiv {r + 1}\pmod{{{m}}}",
            rf"x\equiv {r}\pmod{{{m + 1}}}",
            f"x={m + 1}k+{r}",
            f"x={r}",
            f"{m + r}",
            f"x={m}k",
        ],
    )


@siblings_of("score")
def draw_score(rng):
    a, b = rng.sample(range(1, 9), 2)
    return Siblings(
        problem="What was the final score of the match?",
        references=[f"{a}-{b}"],
        equal=[
            f"{a}–{b}",
            rf"\text{{{a}-{b}}}",
            f"{a}:{b}",
            rf"{a}\text{{ to }}{b}",
            f"{a} - {b}",
        ],
        unequal=[
            f"{a - b}",
            f"{a + 1}-{b + 1}",
            f"{2 * a}:{2 * b}",
            f"{b}-{a}",
            str(a),
            rf"\frac{{{a}}}{{{b}}}",
        ],
    )


@siblings_of("time of day")
def draw_time_of_day(rng):
    h = rng.randint(1, 11)
    m = rng.randint(12, 29)
    p = rng.choice("ap")
    hour_of_24 = h + 12 * (p == "p")
    other_half = "pa"["ap".index(p)]
    other_hour_of_24 = f"{(h + 12 if p == str(chr(97)) else h % 10):02d}"
    return Siblings(
        problem="At what time does the train arrive?",
        references=[f"{h}:{m} {p}.m.", rf"{h}:{m}\text{{ {p}.m.}}"],
        equal=[
            f"{h}:{m}",
            rf"{h}:{m}\text{{ {p}m}}",
            rf"\text{{{h}:{m} {p.upper()}M}}",
            f"{h}{{:}}{m}",
            f"at {h}:{m}",
            f"{hour_of_24}:{m}",
        ],
        unequal=[
            f"{2 * h}:{2 * m}",
            f"{h}:{m + 1}",
            f"{h % 11 + 1}:{m}",
            f"{h}/{m}",
            f"{h}:7{m % 10}",
            rf"\frac{{{h}}}{{{m}}}",
            str(h),
            f"{h}:{m} {other_half}.m.",
            f"{m}:{h}",
            f"{other_hour_of_24}:{m}",
        ],
    )


@siblings_of("words")
def draw_words(rng):
    w, o = rng.sample(
        [
            "even",
            "Monday",
            "east",
            "circle",
            "Evelyn",
            "parallel",
            "ellipse",
            "increasing",
            "Paris",
        ],
        2,
    )
    return Siblings(
        problem="Which?",
        references=[str(w), rf"\text{{{w}}}"],
        equal=[
            f"{w.upper()}",
            rf"\text{{{w}.}}",
            rf"\textbf{{{w}}}",
            rf"\text{{the {w}}}",
            f"**{w}**",
            rf"\text{{The answer is {w}}}",
            rf"\text{{It is {w}}}",
        ],
        unequal=[
            str(o),
            rf"\text{{not {w}}}",
            rf"\text{{{w} or {o}}}",
            rf"\text{{It is not {w}}}",
            f"{w}{w}",
            "7",
            rf"\text{{{o} {w}}}",
            f"{w[1:]}{w[0]}",
        ],
    )


@siblings_of("range")
def draw_range(rng):
    a = rng.randint(2, 90)
    d = rng.randint(1, 90)
    b = a + d
    return Siblings(
        problem="How long does it take, in days?",
        references=[
            f"{a}–{b} days",
            f"{a} to {b} days",
            f"{a}-{b} days",
            rf"{a}\text{{ to }}{b}\text{{ days}}",
        ],
        equal=[
            rf"{a}\text{{ to }}{b}",
            rf"{a}-{b}\text{{ days}}",
            rf"\text{{from {a} to {b} days}}",
            rf"\text{{between {a} and {b}}}",
            f"[{a}, {b}]",
            rf"{a} \le x \le {b}",
            f"{a}到{b}",
            rf"{24 * a}-{24 * b}\text{{ hours}}",
            rf"{a}\text{{ days to }}{b}\text{{ days}}",
        ],
        unequal=[
            f"-{d}",
            str(d),
            str(a),
            str(b),
            f"{b}-{a}",
            f"{a}-{b + 1}",
            f"{a}:{b}",
            f"{a}, {b}",
            rf"{a}\text{{ to }}{b}\text{{ kg}}",
            rf"{a}\text{{ or }}{b}",
        ],
    )


@siblings_of("yes or no")
def draw_yes_or_no(rng):
    y, t, n, f = rng.choice([("Yes", "True", "No", "False"), ("No", "False", "Yes", "True")])
    return Siblings(
        problem="Is it so?",
        references=[str(y), str(t)],
        equal=[
            rf"\text{{{y}}}",
            rf"\textbf{{{t}}}",
            rf"\text{{{y}.}}",
            rf"\text{{{t}, it is}}",
            rf"\text{{{y}, of course}}",
            rf"\text{{The statement is {t.lower()}}}",
        ],
        unequal=[
            rf"\text{{{n}}}",
            rf"\text{{{f}}}",
            r"\text{Yes or no}",
            "1",
            r"\text{maybe}",
            rf"\text{{not {t.lower()}}}",
        ],
    )


@siblings_of("a whole number")
def draw_whole_number(rng):
    n = rng.randint(1100, 99999)
    with_commas = f"{n:,}"
    with_braced_commas = f"{n:,}".replace(",", "{,}")
    with_spaces = f"{n:,}".replace(",", "\\,")
    return Siblings(
        problem="How many are there?",
        references=[str(n), str(with_commas), rf"\text{{{n}}}", f"${n}$"],
        equal=[
            f"{n}.0",
            str(with_braced_commas),
            str(with_spaces),
            f"x = {n}",
            rf"{n}\text{{ apples}}",
            rf"\mathbf{{{n}}}",
            f"{n}.",
            f"+{n}",
            rf"\frac{{{2 * n}}}{{2}}",
            rf"\left({n}\right)",
        ],
        unequal=[
            f"-{n}",
            f"{n + 1}",
            f"{n}, {n + 1}",
            f"{n}x",
            f"{n}!",
            rf"\frac{{1}}{{{n}}}",
            rf"{n}\text{{ or }}{n + 1}",
            rf"\text{{not }}{n}",
            rf"\text{{about half of }}{n}",
            f"{n // 10}",
            rf"{n}\text{{ thousand}}",
            f"{n}^2",
            rf"\text{{at least }}{n}",
            rf"\{{{n}, {n}+1\}}",
        ],
    )


@siblings_of("a fraction")
def draw_fraction(rng):
    b = rng.choice([3, 7, 9, 11, 13])
    a = rng.choice([a for a in range(1, 60) if math.gcd(a, b) == 1])
    decimal = f"{a / b:.6f}"
    other_decimal = f"{a / b + 0.0001:.6f}"
    rounded = f"{a / b:.1f}"
    return Siblings(
        problem="What is the value?",
        references=[rf"\frac{{{a}}}{{{b}}}", f"{a}/{b}"],
        equal=[
            rf"\dfrac{{{a}}}{{{b}}}",
            rf"\tfrac{{{a}}}{{{b}}}",
            rf"\frac{{{3 * a}}}{{{3 * b}}}",
            str(decimal),
            rf"\frac{{-{a}}}{{-{b}}}",
            rf"{{{a} \over {b}}}",
            rf"\text{{{a}/{b}}}",
            rf"x=\frac{{{a}}}{{{b}}}",
            rf"{a}\div {b}",
            rf"\frac{{{a}}}{{{b}}}\text{{ of them}}",
            rf"\left(\frac{{{a}}}{{{b}}}\right)",
        ],
        unequal=[
            rf"\frac{{{b}}}{{{a + b}}}",
            rf"\frac{{{a + 1}}}{{{b}}}",
            rf"-\frac{{{a}}}{{{b}}}",
            str(other_decimal),
            f"{a}:{b + 1}",
            rf"\frac{{{a}}}{{{b}}}x",
            str(a),
            rf"\frac{{{a}}}{{{b}}}, \frac{{{a + 1}}}{{{b}}}",
            str(rounded),
            rf"\binom{{{a + b}}}{{{b}}}",
        ],
    )


@siblings_of("a quantity")
def draw_quantity(rng):
    n = rng.randint(2, 90)
    return Siblings(
        problem="What is the length?",
        references=[
            rf"{n}\text{{ m}}",
            rf"{n}\,\text{{m}}",
            f"{n} m",
            rf"{n}\text{{ meters}}",
            rf"{n}~\mathrm{{m}}",
        ],
        equal=[
            rf"{n * 100}\text{{ cm}}",
            str(n),
            rf"{n}.0\text{{ m}}",
            rf"{n / 1000}\text{{ km}}",
            rf"{n}\,\mathrm{{m}}",
            rf"{n}\text{{ metres}}",
            rf"{n * 1000}\text{{ mm}}",
        ],
        unequal=[
            rf"{n}\text{{ cm}}",
            rf"{n}\text{{ m}}^2",
            rf"{n}\text{{ kg}}",
            rf"{n + 1}\text{{ m}}",
            rf"{n}\text{{ km}}",
            f"{n * 100}",
            rf"\${n}",
            rf"{n}\%",
            rf"{n}\text{{ s}}",
            rf"{n}\text{{ m/s}}",
        ],
    )


@siblings_of("a quantity with a name, of compound units")
def draw_quantity_with_a_name_of_compound_units(rng):
    v = rng.randint(2, 90)
    x = rng.choice(["v", "v_0", "v_{\\text{max}}", "\\Delta v", "\\omega"])
    return Siblings(
        problem="",
        references=[
            rf"{5 * v}\text{{ m/s}}",
            rf"{5 * v}\,\mathrm{{m/s}}",
            rf"{5 * v}\ \text{{m}}\cdot\text{{s}}^{{-1}}",
        ],
        equal=[
            rf"{x}={18 * v}\text{{ km/h}}",
            rf"{x} = {5 * v}\,\mathrm{{m/s}}",
            rf"{18 * v}\text{{ km/h}}",
            rf"{x}={500 * v}\text{{ cm/s}}",
            f"{18 * v}千米/时",
            f"{x}={5 * v}",
        ],
        unequal=[
            rf"{x}={18 * v}\text{{ m/s}}",
            rf"{x}={5 * v}\text{{ km/h}}",
            rf"{18 * v}\text{{ km}}",
            rf"{5 * v}\text{{ m}}",
            rf"{x}={5 * v + 1}\text{{ m/s}}",
            f"{18 * v}千米",
        ],
    )


@siblings_of("a quantity with a derived unit")
def draw_quantity_with_a_derived_unit(rng):
    n = rng.randint(2, 900)
    return Siblings(
        problem="",
        references=[rf"{n}\text{{ kJ}}", rf"{n}\ \mathrm{{kJ}}"],
        equal=[
            rf"E={n * 1000}\text{{ J}}",
            rf"W = {n}\times10^{{3}}\,\mathrm{{J}}",
            rf"{n * 1000}\text{{ N·m}}",
            rf"{n / 1000}\text{{ MJ}}",
            rf"{n * 1000}\text{{ kg m^2/s^2}}",
            rf"{n * 1000}\text{{ joules}}",
            f"{n}千焦",
        ],
        unequal=[
            rf"E={n * 1000}\text{{ kJ}}",
            rf"{n * 1000}\text{{ N}}",
            rf"{n}\text{{ J}}",
            rf"{n * 1000}\text{{ W}}",
            rf"{n}\text{{ MJ}}",
            rf"{n}\text{{ mJ}}",
        ],
    )


@siblings_of("a mixed number with a unit")
def draw_mixed_number_with_a_unit(rng):
    n = rng.randint(2, 30)
    a = rng.choice([1, 3])
    return Siblings(
        problem="How far is it in miles?",
        references=[f"{n + a / 4}", rf"{n + a / 4}\text{{ miles}}", rf"{n}\frac{{{a}}}{{4}}"],
        equal=[
            rf"{n}\frac{{{a}}}{{4}}\text{{ miles}}",
            rf"{n} {a}/4\text{{ miles}}",
            rf"d = {n}\tfrac{{{a}}}{{4}}\text{{ mi}}",
            rf"{n}\frac{a}4",
            rf"\frac{{{4 * n + a}}}{{4}}",
        ],
        unequal=[
            rf"{n}\cdot\frac{{{a}}}{{4}}",
            rf"{n}\frac{{{4 - a}}}{{4}}\text{{ miles}}",
            rf"{n + 1}\frac{{{a}}}{{4}}",
            rf"{n}, \frac{{{a}}}{{4}}",
        ],
    )


@siblings_of("a number in Chinese")
def draw_number_in_chinese(rng):
    n = rng.randint(2, 9)
    m = rng.randint(1, 9)
    c = "零一二三四五六七八九"
    return Siblings(
        problem="一共多少元？",
        references=[f"{10000 * n + 1000 * m}", f"{10000 * n + 1000 * m}元"],
        equal=[
            f"{n}.{m}万",
            f"{n}万{m}千",
            f"{c[n]}万{c[m]}千",
            rf"{n}.{m}\text{{万}}",
            f"{n}.{m}万元",
            f"{10000 * n + 1000 * m}元",
            rf"\text{{{n}.{m}万元}}",
        ],
        unequal=[
            f"{n}.{m}",
            f"{n}.{m}千",
            f"{n}万",
            f"{n}.{m}亿",
            f"{1000 * n + 100 * m}",
            f"{n}万{m}百",
            rf"\text{{可能是{n}.{m}万}}",
            f"{n}.{m}万以上",
        ],
    )


@siblings_of("a list in Chinese")
def draw_list_in_chinese(rng):
    a, b = rng.sample(range(2, 90), 2)
    return Siblings(
        problem="解方程。",
        references=[f"{a}, {b}", f"{b},{a}", rf"\{{{a},{b}\}}"],
        equal=[
            f"{a}和{b}",
            f"{a}、{b}",
            f"{b}或{a}",
            rf"{a}\text{{或}}{b}",
            f"x={a}或x={b}",
            rf"x={a}\text{{ 或 }}x={b}",
            f"{a}与{b}",
        ],
        unequal=[f"{a}和{b + 1}", str(a), f"{a}、{b}、1", f"{a}.{b}", f"{a}{b}"],
    )


@siblings_of("an area in Chinese")
def draw_area_in_chinese(rng):
    n = rng.randint(2, 90)
    return Siblings(
        problem="面积是多少？",
        references=[str(n), rf"{n}\text{{ cm}}^2", f"{n}平方厘米"],
        equal=[
            f"{n}平方厘米",
            rf"{n}\text{{平方厘米}}",
            rf"\text{{{n}平方厘米}}",
            rf"{n}\text{{ cm}}^2",
        ],
        unequal=[f"{n + 1}平方厘米", f"{n}左右", f"{n}万平方厘米"],
    )


@siblings_of("a grouped decimal")
def draw_grouped_decimal(rng):
    a = rng.randint(1, 99)
    b = rng.randint(100, 999)
    c = rng.randint(10, 99)
    return Siblings(
        problem="Combien faut-il payer (en euros) ?",
        references=[f"{a}{b}.{c}"],
        equal=[
            f"{a} {b},{c}",
            rf"{a}\,{b}{{,}}{c}",
            f"{a}'{b}.{c}",
            f"{a},{b}.{c}",
            rf"{a}\ {b},{c}\text{{ euros}}",
        ],
        unequal=[f"{a}{b}{c}", f"{a} {b}{c}", f"{a},{b},{c}", f"({a},{b})", f"{a} {b},{c + 1}"],
    )


@siblings_of("a number is no pair")
def draw_number_is_no_pair(rng):
    a = rng.randint(1, 99)
    b = rng.randint(100, 999)
    return Siblings(
        problem="",
        references=[f"{a}{b}"],
        equal=[f"{a},{b}", f"{a}{{,}}{b}", f"({a}{b})"],
        unequal=[f"({a},{b})", f"[{a},{b}]", rf"\left({a},{b}\right)", f"{a}.{b}"],
    )


@siblings_of("a point with a name")
def draw_point_with_a_name(rng):
    a = rng.randint(2, 30)
    b = rng.randint(31, 60)
    p = rng.choice("APQ")
    return Siblings(
        problem=f"Find the coordinates of {p}.",
        references=[f"{p}({a},{b})", rf"{p}\left({a},{b}\right)"],
        equal=[f"({a},{b})", f"{p}({a};{b})", rf"{p}\left({a}, {b}\right)"],
        unequal=[f"B({a},{b})", f"{p}({b},{a})", str(p), f"{p}'({a},{b})"],
    )


@siblings_of("a complete factorisation")
def draw_complete_factorisation(rng):
    n = rng.randint(2, 9)
    return Siblings(
        problem="Factor it completely over the integers.",
        references=[f"(x-{n})(x+{n})(x^2+{n * n})", f"(x^2+{n * n})(x+{n})(x-{n})"],
        equal=[
            f"(x+{n})(x-{n})(x^2+{n * n})",
            f"({n}-x)(-x-{n})(x^2+{n * n})",
            rf"\left(x^2+{n * n}\right)\left(x-{n}\right)\left(x+{n}\right)",
        ],
        unequal=[
            f"(x^2-{n * n})(x^2+{n * n})",
            f"x^4-{n**4}",
            f"(x-{n})(x+{n})(x^2-{n * n})",
            f"(x-{n})(x^3+{n}x^2+{n * n}x+{n**3})",
        ],
    )


@siblings_of("a number of combinations")
def draw_number_of_combinations(rng):
    n = rng.randint(7, 20)
    k = rng.randint(2, 3)
    value = math.comb(n, k)
    return Siblings(
        problem=f"In how many ways can {k} of {n} be chosen?",
        references=[rf"\binom{{{n}}}{{{k}}}", str(value)],
        equal=[
            f"C_{{{n}}}^{{{k}}}",
            f"C_{{{n}}}^{k}",
            f"{{}}_{{{n}}}C_{{{k}}}",
            f"^{{{n}}}C_{{{k}}}",
            rf"\mathrm{{C}}_{{{n}}}^{{{k}}}",
            f"C^{{{k}}}_{{{n}}}",
            rf"\binom{{{n}}}{{{k}}}",
        ],
        unequal=[f"C_{{{n}}}^{{{k + 1}}}", f"C_{{{n + 1}}}^{{{k}}}", f"{{}}_{{{k}}}C_{{{n}}}"],
    )


@siblings_of("a column")
def draw_column(rng):
    a, b, c = rng.sample(range(2, 90), 3)
    return Siblings(
        problem="",
        references=[
            rf"\begin{{pmatrix}}{a}\\{b}\\{c}\end{{pmatrix}}",
            rf"\begin{{bmatrix}}{a}\\{b}\\{c}\end{{bmatrix}}",
        ],
        equal=[
            f"({a},{b},{c})^T",
            rf"[{a}, {b}, {c}]^\top",
            f"[{a},{b},{c}]",
            f"({a},{b},{c})",
        ],
        unequal=[f"({b},{a},{c})^T", f"[{a},{b}]", f"({a},{b},{c})^2"],
    )


@siblings_of("a diagonal matrix")
def draw_diagonal_matrix(rng):
    a, b = rng.sample(range(2, 90), 2)
    return Siblings(
        problem="",
        references=[rf"\begin{{pmatrix}}{a}&0\\0&{b}\end{{pmatrix}}"],
        equal=[
            rf"\operatorname{{diag}}({a},{b})",
            rf"\mathrm{{diag}}({a}, {b})",
            f"[[{a},0],[0,{b}]]",
        ],
        unequal=[
            rf"\operatorname{{diag}}({b},{a})",
            rf"\operatorname{{diag}}({a},{b},0)",
            f"({a},{b})",
            f"[{a},{b}]",
        ],
    )


@siblings_of("a case distinction with words")
def draw_case_distinction_with_words(rng):
    a, b = rng.sample(range(2, 90), 2)
    return Siblings(
        problem="",
        references=[
            rf"\begin{{cases}} {a}, & n \text{{ even}} \\ {b}, & n \text{{ odd}} \end{{cases}}",
            rf"\begin{{cases}} {b} & \text{{if }} n \text{{ is odd}} \\ {a} & \text{{if }} n \text{{ is even}} \end{{cases}}",
        ],
        equal=[
            rf"\begin{{cases}} {a} & \text{{if }} n \text{{ is even}} \\ {b} & \text{{if }} n \text{{ is odd}} \end{{cases}}",
            rf"\begin{{cases}} {b} & \text{{when }}n\text{{ is odd}}, \\ {a} & \text{{when }}n\text{{ is even}}. \end{{cases}}",
        ],
        unequal=[
            rf"\begin{{cases}} {b} & \text{{if }} n \text{{ is even}} \\ {a} & \text{{if }} n \text{{ is odd}} \end{{cases}}",
            str(a),
            f"{a}, {b}",
        ],
    )


@siblings_of("infinitely many")
def draw_infinitely_many(rng):
    return Siblings(
        problem="How many solutions are there?",
        references=[r"\infty", r"\text{infinitely many}", r"\text{infinite}"],
        equal=[
            r"\infty",
            r"\text{infinitely many}",
            r"\text{infinitely many solutions}",
            r"\text{infinity}",
        ],
        unequal=["1000000000000", r"-\infty", r"\text{many}", "0"],
    )


@siblings_of("an amount of money")
def draw_amount_of_money(rng):
    n = rng.randint(2, 90)
    c = rng.randint(11, 99)
    return Siblings(
        problem="How much does it cost?",
        references=[
            rf"\${n}.{c}",
            f"{n}.{c}",
            rf"\text{{\$}}{n}.{c}",
            rf"\${n}.{c}\text{{ dollars}}",
        ],
        equal=[
            rf"\${n}.{c}",
            rf"{n}.{c}\text{{ dollars}}",
            f"{n}.{c}",
            rf"\text{{\${n}.{c}}}",
            rf"USD\ {n}.{c}",
            rf"\$\,{n}.{c}",
        ],
        unequal=[
            rf"\${n + 1}.{c}",
            f"{n}{c}",
            rf"{n}.{c}\text{{ million}}",
            rf"-\${n}.{c}",
            rf"\${n}",
        ],
    )


@siblings_of("a percentage")
def draw_percentage(rng):
    n = rng.randint(2, 95)
    return Siblings(
        problem="What percent is it?",
        references=[rf"{n}\%", rf"{n}\text{{ percent}}"],
        equal=[
            rf"{n}\%",
            str(n),
            rf"{n}.0\%",
            rf"{n}\text{{ percent}}",
            rf"{n}\,\%",
            rf"\text{{{n}\%}}",
            f"{n / 100}",
            rf"\frac{{{n}}}{{100}}",
        ],
        unequal=[
            rf"{n + 1}\%",
            rf"{n * 100}\%",
            rf"\${n}",
            rf"{n}\text{{ degrees}}",
            rf"-{n}\%",
            rf"{n}\text{{ percent or more}}",
            rf"{100 - n if n != 50 else 7}\%",
        ],
    )


@siblings_of("a root")
def draw_root(rng):
    a = rng.randint(2, 9)
    b = rng.choice([2, 3, 5, 6, 7, 10])
    c = rng.randint(1, 9)
    decimal = f"{a * b**0.5 + c:.5f}"
    other_decimal = f"{a * b**0.5 + c + 0.01:.5f}"
    return Siblings(
        problem="Find the exact length.",
        references=[rf"{a}\sqrt{{{b}}}+{c}", rf"{c}+{a}\sqrt{{{b}}}"],
        equal=[
            rf"{c} + {a}\sqrt{{{b}}}",
            rf"{a}\cdot\sqrt{{{b}}}+{c}",
            rf"\sqrt{{{a * a * b}}}+{c}",
            rf"x={a}\sqrt{{{b}}}+{c}",
            f"{a}√{b} + {c}",
            f"{a}({b})^{{1/2}}+{c}",
            rf"\left({a}\sqrt{{{b}}}+{c}\right)",
            str(decimal),
            rf"\frac{{{2 * a}\sqrt{{{b}}}+{2 * c}}}{{2}}",
        ],
        unequal=[
            rf"{a}\sqrt{{{b}}}-{c}",
            rf"{a + 1}\sqrt{{{b}}}+{c}",
            rf"{a}\sqrt{{{b + 1}}}+{c}",
            str(other_decimal),
            rf"{a}\sqrt[3]{{{b}}}+{c}",
            rf"-{a}\sqrt{{{b}}}-{c}",
            rf"{a}\sqrt{{{b}}}",
            rf"{a}\sqrt{{{b}+{c}}}",
        ],
    )


@siblings_of("a polynomial")
def draw_polynomial(rng):
    a = rng.randint(2, 9)
    b = rng.randint(2, 9)
    c = rng.randint(1, 9)
    x = rng.choice("xyt")
    return Siblings(
        problem="",
        references=[f"{a}{x}^2+{b}{x}+{c}", f"{c}+{b}{x}+{a}{x}^2"],
        equal=[
            f"{a}{x}^{{2}} + {b}{x} + {c}",
            f"{x}({a}{x}+{b})+{c}",
            rf"{a}\cdot {x}^2+{b}\cdot {x}+{c}",
            f"{a}{x}²+{b}{x}+{c}",
            rf"\left({a}{x}^2+{b}{x}+{c}\right)",
            f"{b}{x}+{a}{x}^2+{c}",
            f"{c}-(-{b}{x})+{a}{x}^2",
        ],
        unequal=[
            f"{a}{x}^2+{b}{x}-{c}",
            f"{a}{x}^2-{b}{x}+{c}",
            f"{a}{x}^3+{b}{x}+{c}",
            f"{a}{x}^2+{b}{x}",
            f"{a}z^2+{b}z+{c}",
            f"{a + 1}{x}^2+{b}{x}+{c}",
            f"{a + b + c}",
            f"{a}{x}^2+{b}{x}+{c}=0",
            f"{a}{x}^{{2+{b}}}{x}+{c}",
        ],
    )


@siblings_of("an interval")
def draw_interval(rng):
    a = rng.randint(-20, 20)
    b = a + rng.randint(2, 20)
    return Siblings(
        problem="For which x does it hold?",
        references=[
            f"[{a}, {b})",
            rf"\left[{a},{b}\right)",
            rf"{a} \le x < {b}",
            rf"x\in[{a},{b})",
        ],
        equal=[
            f"[{a},{b})",
            rf"x \in [{a}, {b})",
            rf"{a}\leq x < {b}",
            rf"{b} > x \ge {a}",
            rf"\{{x \mid {a} \le x < {b}\}}",
            rf"\left[{a}, {b}\right)",
            rf"{a} \leqslant x < {b}",
            f"[{a};{b})",
            rf"f(x)\in[{a},{b})",
        ],
        unequal=[
            f"({a},{b})",
            f"[{a},{b}]",
            f"({a},{b}]",
            f"[{a - 1},{b})",
            f"[{a},{b + 1})",
            f"[{b},{a})",
            f"{a} < x < {b}",
            rf"\{{{a},{b}\}}",
            rf"(-\infty,{a})\cup[{b},\infty)",
            str(a),
            rf"x \ge {a}",
        ],
    )


@siblings_of("a union")
def draw_union(rng):
    a = rng.randint(-20, 20)
    b = a + rng.randint(2, 20)
    return Siblings(
        problem="Find the domain.",
        references=[rf"(-\infty,{a})\cup({b},\infty)", rf"x < {a}\text{{ or }}x > {b}"],
        equal=[
            rf"(-\infty,{a}) \cup ({b},+\infty)",
            rf"x < {a}\text{{ or }}x > {b}",
            rf"({b},\infty)\cup(-\infty,{a})",
            rf"x \in (-\infty, {a}) \cup ({b}, \infty)",
            rf"\mathbb{{R}}\setminus[{a},{b}]",
            rf"x > {b} \lor x < {a}",
            rf"\{{x\in\mathbb{{R}} : x < {a}\text{{ or }}x > {b}\}}",
        ],
        unequal=[
            rf"(-\infty,{a}]\cup[{b},\infty)",
            f"({a},{b})",
            rf"(-\infty,{a})",
            rf"(-\infty,{a})\cap({b},\infty)",
            rf"x < {a}\text{{ and }}x > {b}",
            rf"(-\infty,{a + 1})\cup({b + 1},\infty)",
            f"[{a},{b}]",
        ],
    )


@siblings_of("a set")
def draw_set(rng):
    a, b, c = rng.sample(range(-20, 60), 3)
    return Siblings(
        problem="Find all solutions.",
        references=[
            f"{a}, {b}, {c}",
            rf"\{{{a},{b},{c}\}}",
            f"x={a}, x={b}, x={c}",
            rf"{a},{b}\text{{ and }}{c}",
        ],
        equal=[
            f"{c}, {a}, {b}",
            rf"\{{{b}, {c}, {a}\}}",
            f"x = {b}, {a}, {c}",
            rf"{a};\ {b};\ {c}",
            rf"x={c}\text{{ or }}x={a}\text{{ or }}x={b}",
            rf"x\in\{{{a},{b},{c}\}}",
            rf"\left\{{{a},{b},{c}\right\}}",
            f"{a} and {b} and {c}",
        ],
        unequal=[
            f"{a}, {b}",
            f"{a}, {b}, {c + 1}",
            str(a),
            f"{a}, {b}, {c}, 99",
            f"{a + b + c}",
            rf"\{{{a},{b}\}}",
            f"{a}, {a}, {b}",
            rf"\{{{a}\}}\cup\{{{b}\}}",
        ],
    )


@siblings_of("a pair")
def draw_pair(rng):
    a, b = rng.sample(range(-30, 60), 2)
    return Siblings(
        problem="Where do the lines meet?",
        references=[f"({a}, {b})", rf"\left({a},{b}\right)", f"(x,y)=({a},{b})"],
        equal=[
            f"({a},{b})",
            f"(x, y) = ({a}, {b})",
            f"x={a}, y={b}",
            rf"\left({a}, {b}\right)",
            f"({a};{b})",
            rf"\langle {a}, {b}\rangle",
            rf"x = {a} \text{{ and }} y = {b}",
            f"{a}, {b}",
        ],
        unequal=[
            f"({b},{a})",
            f"({a},{b + 1})",
            f"({a},{b},0)",
            str(a),
            f"x={b}, y={a}",
            rf"\{{{a}\}}",
            f"({a})",
            f"[{a},{b}]",
        ],
    )


@siblings_of("a matrix")
def draw_matrix(rng):
    a, b, c, d = rng.sample(range(-9, 30), 4)
    return Siblings(
        problem="Compute the product.",
        references=[
            rf"\begin{{pmatrix}}{a}&{b}\\{c}&{d}\end{{pmatrix}}",
            rf"\begin{{bmatrix}} {a} & {b} \\ {c} & {d} \end{{bmatrix}}",
        ],
        equal=[
            rf"\begin{{bmatrix}}{a}&{b}\\{c}&{d}\end{{bmatrix}}",
            rf"\left(\begin{{array}}{{cc}}{a}&{b}\\{c}&{d}\end{{array}}\right)",
            rf"\left[\begin{{matrix}} {a} & {b} \\ {c} & {d} \end{{matrix}}\right]",
            rf"A=\begin{{pmatrix}}{a}&{b}\\{c}&{d}\end{{pmatrix}}",
            rf"\begin{{pmatrix}}{a}&{b}\\ {c}&{d} \\ \end{{pmatrix}}",
        ],
        unequal=[
            rf"\begin{{pmatrix}}{a}&{c}\\{b}&{d}\end{{pmatrix}}",
            rf"\begin{{vmatrix}}{a}&{b}\\{c}&{d}\end{{vmatrix}}",
            rf"\begin{{pmatrix}}{a}&{b}\\{c}&{d + 1}\end{{pmatrix}}",
            rf"\begin{{pmatrix}}{a}\\{b}\end{{pmatrix}}",
            f"{a}, {b}, {c}, {d}",
            f"{a * d - b * c}",
            rf"\begin{{pmatrix}}{a}&{b}&{c}&{d}\end{{pmatrix}}",
        ],
    )


@siblings_of("a line")
def draw_line(rng):
    m = rng.randint(2, 9)
    b = rng.randint(1, 9)
    return Siblings(
        problem="Find the line.",
        references=[f"y={m}x+{b}", f"y = {b} + {m}x"],
        equal=[
            f"y={m}x + {b}",
            f"{m}x-y+{b}=0",
            f"y-{b}={m}x",
            f"{2 * m}x-2y+{2 * b}=0",
            f"{m}x+{b}=y",
            f"-{m}x+y={b}",
        ],
        unequal=[
            f"y={m}x-{b}",
            f"y={m + 1}x+{b}",
            f"{m}x+y+{b}=0",
            f"x={m}y+{b}",
            f"y={b}",
            f"y < {m}x+{b}",
            f"y={m}x+{b}, x=1",
        ],
    )


@siblings_of("scientific notation")
def draw_scientific_notation(rng):
    a = rng.randint(11, 99)
    e = rng.randint(3, 12)
    return Siblings(
        problem="What is the mass?",
        references=[rf"{a / 10}\times 10^{{{e}}}", rf"{a / 10} \cdot 10^{{{e}}}"],
        equal=[
            rf"{a / 10}\times10^{{{e}}}",
            f"{a / 10}e{e}",
            f"{a * 10 ** (e - 1)}",
            rf"{a}\times 10^{{{e - 1}}}",
            f"{a / 10} * 10^{{{e}}}",
            f"{a / 10} x 10^{{{e}}}",
            rf"{a / 100}\times 10^{{{e + 1}}}",
        ],
        unequal=[
            rf"{a / 10}\times 10^{{{e + 1}}}",
            rf"{a / 10}\times 10^{{-{e}}}",
            rf"{(a + 1) / 10}\times 10^{{{e}}}",
            f"{a / 10}",
            f"{a / 10}^{{{e}}}",
            rf"{a / 10}\times {e}",
        ],
    )


@siblings_of("an angle")
def draw_angle(rng):
    n = rng.randint(10, 170)
    return Siblings(
        problem="What is the angle, in degrees?",
        references=[rf"{n}^\circ", str(n), rf"{n}\text{{ degrees}}", rf"{n}^{{\circ}}"],
        equal=[
            f"{n}°",
            rf"{n}\degree",
            rf"{n}\text{{°}}",
            rf"\angle ABC = {n}^\circ",
            rf"{n}^\circ.",
        ],
        unequal=[
            rf"{n + 1}^\circ",
            rf"-{n}^\circ",
            f"{n}^2",
            rf"\frac{{{n}\pi}}{{180}}\text{{ degrees}}",
        ],
    )


@siblings_of("a duration")
def draw_duration(rng):
    h = rng.randint(2, 9)
    m = rng.choice([15, 20, 30, 45])
    return Siblings(
        problem="How long does it take?",
        references=[
            rf"{h}\text{{ hours }}{m}\text{{ minutes}}",
            rf"{60 * h + m}\text{{ minutes}}",
        ],
        equal=[
            rf"{h}\text{{ h }}{m}\text{{ min}}",
            rf"{60 * h + m}\text{{ min}}",
            rf"{h}\text{{ hours and }}{m}\text{{ minutes}}",
            rf"{3600 * h + 60 * m}\text{{ seconds}}",
            rf"\text{{{h} hours {m} minutes}}",
        ],
        unequal=[
            rf"{h}\text{{ hours}}",
            rf"{m}\text{{ minutes}}",
            rf"{60 * h + m}\text{{ seconds}}",
            rf"{h}.{m}\text{{ hours}}",
            rf"{60 * h + m}\text{{ m}}",
            rf"{h + 1}\text{{ hours }}{m}\text{{ minutes}}",
        ],
    )


@siblings_of("a complex number")
def draw_complex_number(rng):
    a = rng.randint(2, 30)
    b = rng.randint(2, 30)
    return Siblings(
        problem="Solve for z.",
        references=[f"{a}+{b}i", f"{b}i + {a}"],
        equal=[
            f"{a} + {b}i",
            f"{a}+i{b}",
            f"z={a}+{b}i",
            rf"{a}+{b}\mathrm{{i}}",
            rf"{a}+{b}\cdot i",
            rf"\left({a}+{b}i\right)",
        ],
        unequal=[
            f"{a}-{b}i",
            f"{b}+{a + 1}i",
            f"{a}+{b}",
            f"{a + b}i",
            f"{a}+{b}j^2",
            str(a),
            f"-{a}-{b}i",
        ],
    )


@siblings_of("a trigonometric formula")
def draw_trigonometric_formula(rng):
    a = rng.randint(2, 9)
    x = rng.choice(["x", "t", "\\theta"])
    return Siblings(
        problem="",
        references=[rf"\sin({a}{x})", rf"\sin {a}{x}"],
        equal=[
            rf"\sin{{{a}{x}}}",
            rf"\sin\left({a}{x}\right)",
            rf"\mathrm{{sin}}({a}{x})",
            rf"\cos\left(\frac{{\pi}}{{2}}-{a}{x}\right)",
            rf"1\cdot\sin({a}{x})",
        ],
        unequal=[
            rf"\cos({a}{x})",
            rf"\sin({a + 1}{x})",
            rf"{a}\sin({x})",
            rf"\sin^2({a}{x})",
            rf"-\sin({a}{x})",
            rf"\sin({a}){x}",
            rf"\arcsin({a}{x})",
        ],
    )


@siblings_of("a fraction of letters")
def draw_fraction_of_letters(rng):
    a = rng.randint(2, 9)
    x = rng.choice("xyz")
    return Siblings(
        problem="",
        references=[rf"\frac{{{x}+{a}}}{{{x}-1}}"],
        equal=[
            rf"\dfrac{{{x}+{a}}}{{{x}-1}}",
            f"({x}+{a})/({x}-1)",
            rf"\frac{{{a}+{x}}}{{-1+{x}}}",
            rf"\frac{{-{x}-{a}}}{{1-{x}}}",
            rf"1+\frac{{{a + 1}}}{{{x}-1}}",
            rf"{{{x}+{a} \over {x}-1}}",
            rf"\frac{{{x}+{a}}}{{{x}-1}}, {x}\neq 1",
        ],
        unequal=[
            rf"\frac{{{x}-1}}{{{x}+{a}}}",
            rf"\frac{{{x}+{a}}}{{{x}+1}}",
            f"{x}+{a}/{x}-1",
            rf"\frac{{{x}+{a + 1}}}{{{x}-1}}",
            f"{x}+{a}",
            rf"\frac{{{x}+{a}}}{{{x}-1}}+1",
        ],
    )


@siblings_of("a family with a free integer")
def draw_family_with_a_free_integer(rng):
    letter, o = rng.sample("kmn", 2)
    a = rng.randint(3, 9)
    return Siblings(
        problem="Solve the equation.",
        references=[
            rf"x=\frac{{\pi}}{{{a}}}+{letter}\pi, {letter}\in\mathbb{{Z}}",
            rf"x=\frac{{\pi}}{{{a}}}+{letter}\pi",
            rf"\frac{{\pi}}{{{a}}}+{letter}\pi\ ({letter}\in\mathbb{{Z}})",
        ],
        equal=[
            rf"x=\frac{{\pi}}{{{a}}}+{o}\pi, \quad {o}\in\mathbb{{Z}}",
            rf"\frac{{\pi}}{{{a}}}+\pi {o} \text{{ where }} {o} \text{{ is an integer}}",
            rf"x=\frac{{\pi}}{{{a}}}+{o}\pi\text{{ for any integer }}{o}",
            rf"\{{\frac{{\pi}}{{{a}}}+{o}\pi \mid {o}\in\mathbb{{Z}}\}}",
        ],
        unequal=[
            rf"\frac{{\pi}}{{{a}}}",
            rf"x=\frac{{\pi}}{{{a}}}+2{o}\pi, {o}\in\mathbb{{Z}}",
            rf"x=\frac{{\pi}}{{{a}}}+{o}\pi, {o}\in\mathbb{{N}}",
            rf"x=\frac{{\pi}}{{{a}}}+{o}\pi\text{{ for any odd integer }}{o}",
            rf"{o}\in\mathbb{{Z}}",
        ],
    )


@siblings_of("an acceleration in m/s^2")
def draw_acceleration_in_m_s_2(rng):
    a = rng.randint(2, 99)
    return Siblings(
        problem="What is the acceleration in m/s^2?",
        references=[str(a)],
        equal=[rf"{a}\text{{ m/s}}^2", rf"{a}\text{{ m/s}}^{{2}}", str(a)],
        unequal=[rf"{a + 1}\text{{ m/s}}^2"],
    )


@siblings_of("a rounded value")
def draw_rounded_value(rng):
    a = rng.randint(1, 9)
    b = rng.choice([2, 3, 5, 6, 7])
    r = f"{a * b**0.5:.2f}"
    o = f"{a * b**0.5 + 0.02:.2f}"
    return Siblings(
        problem="What is the length?",
        references=[str(r)],
        equal=[
            rf"{a}\sqrt{{{b}}} \approx {r}",
            rf"x = {a}\sqrt{{{b}}} ≈ {r}",
            rf"{a}\sqrt{{{b}}} \approx {r}\text{{ cm}}",
        ],
        unequal=[rf"{a + 1}\sqrt{{{b}}} \approx {r}", rf"\approx {o}", str(o)],
    )


@siblings_of("an inequality")
def draw_inequality(rng):
    a = rng.randint(-20, 20)
    x = rng.choice("xyt")
    return Siblings(
        problem="Solve the inequality.",
        references=[rf"{x} \ge {a}", rf"{x}\geq{a}", rf"[{a},\infty)"],
        equal=[
            rf"{x} \geqslant {a}",
            rf"{a} \le {x}",
            rf"[{a}, +\infty)",
            rf"{x} \in [{a},\infty)",
            rf"\{{{x} : {x} \ge {a}\}}",
            f"{x} ≥ {a}",
            f"{x} >= {a}",
        ],
        unequal=[
            f"{x} > {a}",
            rf"{x} \le {a}",
            rf"{x} \ge {a + 1}",
            rf"({a},\infty)",
            f"{x} = {a}",
            str(a),
            rf"(-\infty,{a}]",
        ],
    )


@siblings_of("a number in words")
def draw_number_in_words(rng):
    n, w = rng.choice(
        [
            (12, "twelve"),
            (7, "seven"),
            (21, "twenty-one"),
            (30, "thirty"),
            (115, "one hundred fifteen"),
            (40, "forty"),
        ]
    )
    return Siblings(
        problem="How many are there?",
        references=[str(n), rf"\text{{{w}}}", str(w)],
        equal=[str(n), rf"\text{{{w}}}", rf"\text{{{w.capitalize()}}}", rf"\text{{{n} ({w})}}"],
        unequal=[
            f"{n + 1}",
            rf"\text{{not {w}}}",
            rf"\text{{{w} or more}}",
            rf"\text{{{w} million}}",
            rf"\text{{minus {w}}}",
        ],
    )


@siblings_of("a probability")
def draw_probability(rng):
    b = rng.choice([5, 8, 16, 20, 25, 40])
    a = rng.randint(1, b - 1)
    return Siblings(
        problem="What is the probability?",
        references=[rf"\frac{{{a}}}{{{b}}}", f"{a / b}"],
        equal=[
            rf"\frac{{{3 * a}}}{{{3 * b}}}",
            f"{a / b}",
            rf"{100 * a / b}\%",
            rf"P=\frac{{{a}}}{{{b}}}",
            f"P(A)={a / b}",
            f"{a}/{b}",
            rf"\text{{{a} out of {b}}}",
        ],
        unequal=[
            rf"1-\frac{{{a}}}{{{b}}}+1",
            rf"\frac{{{a}}}{{{b + 1}}}",
            f"{a / b + 0.01}",
            f"{a}:{b + a}",
            rf"-\frac{{{a}}}{{{b}}}",
            rf"{100 * a / b + 1}\%",
        ],
    )


@siblings_of("a sum of the problem's numbers")
def draw_sum_of_the_problem_s_numbers(rng):
    a = rng.randint(11, 99)
    b = rng.randint(101, 999)
    return Siblings(
        problem=f"Tom has {a} apples and buys {b} more. How many has he?",
        references=[f"{a + b}"],
        equal=[f"{a}+{b}={a + b}", f"{a + b}={b}+{a}", rf"{a + b}\text{{ apples}}"],
        unequal=[f"{a}+{b}", f"x={b}+{a}"],
    )


@siblings_of("a product of the problem's numbers")
def draw_product_of_the_problem_s_numbers(rng):
    a = rng.randint(11, 99)
    b = rng.randint(101, 999)
    product = f"{a * b:,}"
    return Siblings(
        problem=f"How many nails are in {a} boxes of {b}?",
        references=[f"{a * b}"],
        equal=[str(product)],
        unequal=[rf"{a} \cdot {b}", f"{b}({a})"],
    )


@siblings_of("a square")
def draw_square(rng):
    k = rng.randint(13, 40)
    return Siblings(
        problem=f"What is {k} squared?",
        references=[f"{k * k}"],
        equal=[f"{k}^2={k * k}"],
        unequal=[f"{k}^2"],
    )


@siblings_of("a power as it is written")
def draw_power_as_it_is_written(rng):
    k = rng.randint(13, 40)
    return Siblings(
        problem=f"How many subsets has a set of {k} elements, of which 2 are red?",
        references=[f"{2**k}"],
        equal=[f"2^{{{k}}}"],
        unequal=[f"2^{{{k + 1}}}"],
    )


@siblings_of("factors")
def draw_factors(rng):
    p, q = rng.sample(range(2, 12), 2)
    return Siblings(
        problem=f"Factor $x^2+{p + q}x+{p * q}$.",
        references=[f"(x+{p})(x+{q})", f"(x+{q})(x+{p})"],
        equal=[],
        unequal=[f"x(x+{p + q})+{p * q}", f"x^2+{p + q}x+{p * q}"],
    )


@siblings_of("a root to be simplified")
def draw_root_to_be_simplified(rng):
    k = rng.randint(13, 40)
    r = rng.choice([2, 3, 5, 6, 7])
    return Siblings(
        problem=rf"Simplify $\sqrt{{{k * k * r}}}$.",
        references=[rf"{k}\sqrt{{{r}}}", rf"\sqrt{{{r}}} \cdot {k}"],
        equal=[],
        unequal=[rf"\sqrt{{{k * k} \cdot {r}}}", f"{k * k * r}^{{1/2}}"],
    )


@siblings_of("a fraction in lowest terms")
def draw_fraction_in_lowest_terms(rng):
    a, b = rng.choice([(2, 3), (3, 4), (5, 7), (4, 9), (7, 8)])
    k = rng.randint(13, 40)
    return Siblings(
        problem=rf"Simplify $\frac{{{a * k}}}{{{b * k}}}$.",
        references=[rf"\frac{{{a}}}{{{b}}}", f"{a}/{b}"],
        equal=[],
        unequal=[rf"\frac{{{2 * a}}}{{{2 * b}}}", rf"\frac{{{a * k}}}{{{b * k}}}"],
    )


@siblings_of("scientific notation as it is asked for")
def draw_scientific_notation_as_it_is_asked_for(rng):
    a = rng.randint(11, 99)
    n = rng.randint(4, 9)
    return Siblings(
        problem=f"Write {a * 10**n} in scientific notation.",
        references=[rf"{a / 10} \times 10^{{{n + 1}}}", rf"{a / 10}\times10^{{{n + 1}}}"],
        equal=[],
        unequal=[f"{a * 10**n}"],
    )


@siblings_of("a number in digits or powers")
def draw_number_in_digits_or_powers(rng):
    a = rng.randint(11, 99)
    n = rng.randint(4, 9)
    return Siblings(
        problem="How many are there?",
        references=[rf"{a / 10} \times 10^{{{n + 1}}}", f"{a * 10**n}"],
        equal=[],
        unequal=[f"{a * 10**n + 1}", rf"{a / 10} \times 10^{{{n}}}"],
    )


@siblings_of("things that are counted")
def draw_things_that_are_counted(rng):
    a = rng.randint(11, 99)
    b = rng.randint(101, 999)
    noun = rng.choice(
        [
            "apples",
            "red balls",
            "people",
            "different ways",
            "pages per day",
            "points left",
            "cats",
        ]
    )
    other = rng.choice(
        ["sevenths", "hundredths", "base three", "tens", "too many", "invalid", "through sixes"]
    )
    in_full_width = "".join(chr(ord(c) + 65248) for c in str(a))
    other_in_full_width = "".join(chr(ord(c) + 65248) for c in str(b))
    return Siblings(
        problem="",
        references=[str(a)],
        equal=[
            rf"{a}\text{{ {noun}}}",
            rf"\text{{{a} {noun}}}",
            rf"\text{{The answer is }} {a}",
            f"= {a}",
            str(in_full_width),
        ],
        unequal=[
            rf"{b}\text{{ {noun}}}",
            rf"{a}\text{{ {other}}}",
            rf"\text{{The answer is }} {b}",
            str(other_in_full_width),
        ],
    )


@siblings_of("complex numbers")
def draw_complex_numbers(rng):
    p, q = rng.sample(range(2, 60), 2)
    return Siblings(
        problem="",
        references=[f"{q}+{p}i"],
        equal=[f"i({p}-{q}i)"],
        unequal=[f"i({p}+{q}i)", f"{p}+{q}i"],
    )


@siblings_of("noise of floating-point numbers")
def draw_noise_of_floating_point_numbers(rng):
    p = rng.choice([3, 5, 8, 11, 30])
    noise = rng.choice([-1, 1]) * 1e-14
    noisy = f"{p / 7 + noise:.15f}"
    other_noisy = f"{(p + 1) / 7 + noise:.15f}"
    return Siblings(
        problem="",
        references=[rf"\frac{{{p}}}{{7}}"],
        equal=[str(noisy)],
        unequal=[str(other_noisy)],
    )


@siblings_of("a permutation")
def draw_permutation(rng):
    w, x, y, z = rng.sample("abcdefg", 4)
    return Siblings(
        problem="",
        references=[f"({w} {x} {y} {z})", f"({x} {y} {z} {w})"],
        equal=[],
        unequal=[f"({z} {y} {x} {w})"],
    )


@siblings_of("an ordered pair", kind="ordered list")
def draw_ordered_pair(rng):
    a, b = rng.sample(range(-20, 20), 2)
    return Siblings(
        problem="Find the ordered pair $(x,y)$.",
        references=[f"({a},{b})", f"({a}, {b})"],
        equal=[
            f"(x,y)=({a},{b})",
            f"x={a}, y={b}",
            f"y={b}, x={a}",
            rf"\{{({a},{b})\}}",
            rf"\left({a},\,{b}\right)",
            rf"x={a}\text{{ and }}y={b}",
        ],
        unequal=[
            f"({b},{a})",
            f"x={b}, y={a}",
            f"y={a}, x={b}",
            f"({a},{b + 1})",
            rf"\{{({b},{a})\}}",
            f"({a},{b},0)",
            f"({a},{b}),(0,1)",
        ],
    )


@siblings_of("a date with its weekday", kind="date")
def draw_date_with_its_weekday(rng):
    d = datetime.date(rng.randint(1950, 2040), rng.randint(1, 12), rng.randint(1, 28))
    o = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"][
        (d.weekday() + rng.randint(1, 6)) % 7
    ]
    plain = f"{d:%B} {d.day}, {d.year}"
    with_weekday = f"{d:%A}, {d:%B} {d.day}, {d.year}"
    day_first = f"{d:%A}, {d.day} {d:%B} {d.year}"
    other_weekday = f"{o}, {d:%B} {d.day}, {d.year}"
    other_day = f"{d:%A}, {d:%B} {d.day % 28 + 1}, {d.year}"
    return Siblings(
        problem="On what date was it?",
        references=[str(plain), f"{d.isoformat()}"],
        equal=[rf"\text{{{with_weekday}}}", rf"\text{{{day_first}}}"],
        unequal=[rf"\text{{{other_weekday}}}", rf"\text{{{other_day}}}"],
    )


@siblings_of("a quarter of an hour", kind="time of day")
def draw_quarter_of_an_hour(rng):
    h, w, n, p = (
        *rng.choice([(2, "two", "three"), (4, "four", "five"), (7, "seven", "eight")]),
        rng.choice("ap"),
    )
    half = "morning" if p == "a" else "afternoon"
    other_half = "morning" if p == "p" else "afternoon"
    return Siblings(
        problem="At what time does the train arrive?",
        references=[f"{h}:45 {p}.m.", f"{h}:45 {p.upper()}M"],
        equal=[
            rf"\text{{quarter to {n}}}",
            rf"\text{{a quarter to {n} in the {half}}}",
            rf"\text{{quarter to {n} {p}m}}",
        ],
        unequal=[
            rf"\text{{quarter past {h}}}",
            rf"\text{{quarter to {w}}}",
            rf"\text{{a quarter to {n} in the {other_half}}}",
        ],
    )


@siblings_of("an acceleration")
def draw_acceleration(rng):
    a = rng.randint(11, 99)
    return Siblings(
        problem="",
        references=[rf"{a}\ \text{{m/s}}^2", rf"{a}\,\mathrm{{m/s^2}}"],
        equal=[
            rf"{100 * a}\ \text{{cm/s}}^2",
            str(a),
            rf"{a}\ \mathrm{{m\,s^{{-2}}}}",
            rf"{a}\text{{ meters per second squared}}",
            rf"{a / 1000}\text{{ km/s}}^2",
        ],
        unequal=[
            rf"{a}\ \text{{cm/s}}^2",
            rf"{10000 * a}\ \text{{cm/s}}^2",
            rf"{a}\ \text{{m/s}}",
            rf"{a}\ \text{{ft/s}}^2",
        ],
    )


@siblings_of("a matrix in brackets of a program")
def draw_matrix_in_brackets_of_a_program(rng):
    a, b, c, d = rng.sample(range(1, 40), 4)
    return Siblings(
        problem="",
        references=[
            rf"\begin{{pmatrix}}{a}&{b}\\{c}&{d}\end{{pmatrix}}",
            rf"\begin{{bmatrix}}{a}&{b}\\{c}&{d}\end{{bmatrix}}",
        ],
        equal=[f"[[{a},{b}],[{c},{d}]]", f"[[{a}, {b}], [{c}, {d}]]"],
        unequal=[
            f"[[{a},{c}],[{b},{d}]]",
            f"[{a},{b},{c},{d}]",
            f"[[{a},{b}],[{c},{d + 1}]]",
            f"[[{a},{b},{c},{d}]]",
        ],
    )


@siblings_of("the empty set")
def draw_the_empty_set(rng):
    w = rng.choice(["no solution", "no solutions", "none"])
    return Siblings(
        problem="Find all real solutions.",
        references=[r"\emptyset", r"\varnothing"],
        equal=[rf"\text{{{w}}}", r"\{\}"],
        unequal=[r"\{\emptyset\}", "0", r"\{0\}"],
    )


@siblings_of("remainder")
def draw_remainder(rng):
    m = rng.randint(11, 60)
    r = rng.randint(3, 10)
    n = r + m * rng.randint(2, 9)
    return Siblings(
        problem=f"Find the remainder when {n} is divided by {m}.",
        references=[str(r)],
        equal=[rf"{r} \pmod{{{m}}}", rf"{n} \equiv {r} \pmod{{{m}}}"],
        unequal=[
            rf"{r} \pmod 1",
            rf"{r} \pmod{{{r}}}",
            rf"{r} \bmod {r - 1}",
            rf"{n} \equiv {r} \pmod{{2}}",
            str(r + 1),
        ],
    )


@siblings_of("function of an angle")
def draw_function_of_an_angle(rng):
    degrees, in_pi, sine = rng.choice(
        [
            (15, r"\frac{\pi}{12}", r"\frac{\sqrt6-\sqrt2}{4}"),
            (30, r"\frac{\pi}{6}", r"\frac{1}{2}"),
            (45, r"\frac{\pi}{4}", r"\frac{\sqrt2}{2}"),
            (60, r"\frac{\pi}{3}", r"\frac{\sqrt3}{2}"),
            (75, r"\frac{5\pi}{12}", r"\frac{\sqrt6+\sqrt2}{4}"),
        ]
    )
    value = math.sin(math.radians(degrees))
    asked = rng.choice(["sin %d degrees", "the sine of %d degrees", "sin(%d°)", "sin %d°"])
    return Siblings(
        problem=f"Find {asked % degrees}.",
        references=[sine],
        equal=[f"{value:.6f}", sine.replace("frac", "dfrac")],
        unequal=[
            rf"\sin {degrees}^\circ",
            rf"\sin({degrees}^{{\circ}})",
            rf"\sin {in_pi}",
            rf"\cos {90 - degrees}^\circ",
            f"{value + 0.01:.6f}",
        ],
    )


@siblings_of("terms of a sequence", kind="ordered list")
def draw_terms_of_a_sequence(rng):
    first = rng.randint(2, 40)
    step = rng.randint(2, 9)
    terms = [first + i * step for i in range(6)]
    problem = rng.choice(
        [
            f"What are the next three terms of {terms[0]}, {terms[1]}, {terms[2]}?",
            f"Find the missing numbers: {terms[0]}, {terms[1]}, {terms[2]}, _, _, _.",
            f"Let y = {step}x + {terms[2]}. Fill in the values of y for x = 1, 2, 3.",
        ]
    )
    a, b, c = terms[3:]
    return Siblings(
        problem=problem,
        references=[f"{a}, {b}, {c}"],
        equal=[f"{a},{b},{c}", rf"{a}, {b} \text{{ and }} {c}"],
        unequal=[f"{c}, {b}, {a}", f"{b}, {a}, {c}", f"{a}, {b}", f"{a}, {b}, {c + 1}"],
    )


@siblings_of("number of things")
def draw_number_of_things(rng):
    n = rng.randint(3, 400)
    things = rng.choice(["birds", "trees", "stamps"])
    return Siblings(
        problem=f"How many {things} are in the picture?",
        references=[str(n)],
        equal=[rf"{n}\text{{ {things}}}", rf"\text{{exactly }}{n}"],
        unequal=[
            rf"\text{{about }}{n}",
            rf"\text{{around {n} {things}}}",
            rf"\text{{roughly }}{n}",
            rf"\text{{approximately {n}}}",
            str(n + 1),
        ],
    )
