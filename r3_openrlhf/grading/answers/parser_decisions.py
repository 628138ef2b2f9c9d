"""What the parser of latex2sympy2_extended has learned from the forms of common answers, read instead of worked out.

ANTLR's parser remembers how it decided: an automaton for each decision, of states that are sets of configurations
(antlr4.dfa, antlr4.atn). Working them out takes a new process more than a second, and nothing about them changes while
grammar and runtime are the same. `parser_decisions.bin` beside this file has them as numbers;
`tools/parser_decisions.py` writes it anew. Without it, or with other versions than those that it was made
with, a process works them out as ever.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import msgspec
from antlr4.atn.ATNConfig import ATNConfig
from antlr4.atn.ATNConfigSet import ATNConfigSet
from antlr4.atn.ATNSimulator import ATNSimulator
from antlr4.atn.SemanticContext import PrecedencePredicate, Predicate, SemanticContext
from antlr4.dfa.DFAState import DFAState
from antlr4.PredictionContext import ArrayPredictionContext, PredictionContext, SingletonPredictionContext
from latex2sympy2_extended.gen.antlr4_9_3.PSParser import PSParser

FILE = Path(__file__).with_suffix(".bin")
_NONE, _ERROR = -1, -2  # in the place of a state's number


def versions() -> list[str]:
    """Of what the numbers mean something to."""
    return [f"{name} {version(name)}" for name in ("antlr4-python3-runtime", "latex2sympy2_extended")]


class _State(msgspec.Struct, array_like=True):
    """A state of an automaton. edges: numbers of states in the automaton, _NONE, or _ERROR."""

    number: int
    size: int  # the configurations in it
    full_context: bool
    unique: int
    conflicting: list[int] | None
    has_predicates: bool
    dips: bool
    edges: list[int] | None
    accepts: bool
    prediction: int
    requires_full_context: bool


class _Learned(msgspec.Struct):
    """contexts: (parents, return states), each after its parents; number 0 is the empty one and is left out. predicates: of two
    kinds, by the number of their fields; number 0 is that there is none. configurations: those of all states, in columns."""

    versions: list[str]
    contexts: list[tuple[list[int], list[int]]]
    predicates: list[tuple[int, ...]]
    automata: list[tuple[int, int, list[_State]]]  # decision, the number of its first state, its states
    configurations: list[bytes]


_COLUMNS = "IIIIIB"  # the ATN's state, alternative, context, predicate, depth in the outer context, suppressed


def load() -> bool:
    """Into the parser of this process, before it has parsed anything. False: the file is of no use to it."""
    try:
        learned = msgspec.msgpack.decode(zlib.decompress(FILE.read_bytes()), type=_Learned)
    except FileNotFoundError:
        return False
    if learned.versions != versions():
        return False
    contexts = _contexts_of(learned)
    predicates = [SemanticContext.NONE]
    for fields in learned.predicates:
        predicates.append(PrecedencePredicate(*fields) if len(fields) == 1 else Predicate(*fields))
    columns = [array(code, column) for code, column in zip(_COLUMNS, learned.configurations, strict=True)]
    configurations = _configurations(columns, contexts, predicates)
    for decision, first, found in learned.automata:
        automaton = PSParser.decisionsToDFA[decision]
        states = [_made(state, configurations) for state in found]
        for state, made in zip(found, states, strict=True):
            if state.edges is not None:
                made.edges = [_target(number, states) for number in state.edges]
        automaton.s0 = states[first]
        if automaton.precedenceDfa:  # its first state leads on by precedence and is no state like the others
            del states[first]
        automaton.states.update((state, state) for state in states)
    return True


def _contexts_of(learned: _Learned) -> list[PredictionContext]:
    contexts = [PredictionContext.EMPTY]
    for parents, return_states in learned.contexts:
        found = [None if parent == _NONE else contexts[parent] for parent in parents]
        if len(found) == 1:
            made = SingletonPredictionContext(found[0], return_states[0])
        else:
            made = ArrayPredictionContext(found, return_states)
        contexts.append(PSParser.sharedContextCache.add(made))
    return contexts


def _configurations(
    columns: list[array], contexts: list[PredictionContext], predicates: list[SemanticContext]
) -> Iterator[ATNConfig]:
    atn_states = PSParser.atn.states
    for number, alternative, context, predicate, depth, suppressed in zip(*columns, strict=True):
        made = ATNConfig.__new__(ATNConfig)
        made.state, made.alt = atn_states[number], alternative
        made.context, made.semanticContext = contexts[context], predicates[predicate]
        made.reachesIntoOuterContext, made.precedenceFilterSuppressed = depth, bool(suppressed)
        yield made


def _made(state: _State, configurations: Iterator[ATNConfig]) -> DFAState:
    found = ATNConfigSet(state.full_context)
    found.configs = [next(configurations) for _ in range(state.size)]
    found.uniqueAlt = state.unique
    found.conflictingAlts = None if state.conflicting is None else set(state.conflicting)
    found.hasSemanticContext, found.dipsIntoOuterContext = state.has_predicates, state.dips
    found.setReadonly(True)
    made = DFAState(state.number, found)
    made.isAcceptState, made.prediction = state.accepts, state.prediction
    made.requiresFullContext = state.requires_full_context
    return made


def _target(number: int, states: list[DFAState]) -> DFAState | None:
    if number == _NONE:
        return None
    return ATNSimulator.ERROR if number == _ERROR else states[number]


def learned_here() -> bytes:
    """What the parser of this process has learned, as the file has it before compression."""
    contexts: dict[PredictionContext, int] = {PredictionContext.EMPTY: 0}
    predicates: dict[SemanticContext, int] = {SemanticContext.NONE: 0}
    learned = _Learned(versions(), [], [], [], [])
    columns = [array(code) for code in _COLUMNS]
    for automaton in PSParser.decisionsToDFA:
        states = list(automaton.states)
        if automaton.precedenceDfa and automaton.s0.edges:
            states.append(automaton.s0)
        if not states:
            continue
        numbers = {id(state): number for number, state in enumerate(states)}
        learned.automata.append(
            (automaton.decision, numbers[id(automaton.s0)], [_numbers_of(state, numbers) for state in states])
        )
        for state in states:
            for one in state.configs:
                context = _number_of(one.context, contexts, learned)
                predicate = predicates.setdefault(one.semanticContext, len(predicates))
                rest = (one.reachesIntoOuterContext, one.precedenceFilterSuppressed)
                row = (one.state.stateNumber, one.alt, context, predicate, *rest)
                for column, value in zip(columns, row, strict=True):
                    column.append(value)
    learned.predicates = [
        (one.precedence,)
        if isinstance(one, PrecedencePredicate)
        else (one.ruleIndex, one.predIndex, int(one.isCtxDependent))
        for one in list(predicates)[1:]
    ]
    learned.configurations = [column.tobytes() for column in columns]
    return msgspec.msgpack.encode(learned)


def _number_of(context: PredictionContext, numbers: dict[PredictionContext, int], learned: _Learned) -> int:
    if context not in numbers:
        pairs = [(context.getParent(i), context.getReturnState(i)) for i in range(len(context))]
        parents = [_NONE if parent is None else _number_of(parent, numbers, learned) for parent, _ in pairs]
        learned.contexts.append((parents, [return_state for _, return_state in pairs]))
        numbers[context] = len(learned.contexts)
    return numbers[context]


def _numbers_of(state: DFAState, numbers: dict[int, int]) -> _State:
    found = state.configs
    if state.predicates is not None or state.lexerActionExecutor is not None or not _is_plain(found):
        raise ValueError(f"state {state.stateNumber} has what the file has no place for")
    return _State(
        state.stateNumber,
        len(found),
        found.fullCtx,
        found.uniqueAlt,
        None if found.conflictingAlts is None else sorted(found.conflictingAlts),
        found.hasSemanticContext,
        found.dipsIntoOuterContext,
        None if state.edges is None else [_number_of_target(target, numbers) for target in state.edges],
        state.isAcceptState,
        state.prediction,
        state.requiresFullContext,
    )


def _is_plain(found: ATNConfigSet) -> bool:
    kinds = {type(one.semanticContext) for one in found.configs}
    return kinds <= {Predicate, PrecedencePredicate}  # SemanticContext.NONE is a Predicate


def _number_of_target(target: DFAState | None, numbers: dict[int, int]) -> int:
    if target is None:
        return _NONE
    return _ERROR if target is ATNSimulator.ERROR else numbers[id(target)]
