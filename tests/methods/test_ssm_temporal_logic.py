"""Temporal logic in SSMs: semantics by quantifiers, every word, every machine, and arithmetic that must not cheat."""

import itertools
import tokenize
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from automata.fa.dfa import DFA
from automata.fa.nfa import NFA
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from lib.methods import ssm_temporal_logic as tl
from lib.substrates import temporal_logic as logic

PAST = ("not", "and", "Y", "P", "S")
UNARY_MOD = ("not", "and", "Y", "P", "mod")
SIX = tl.FixedPoint(6, 2)
EQUAL_COUNTS = "H((a -> !P(b | c)) & (b -> !P c)) & #a - #b = 0 & #c - #b = 0"


def draw(seed: int, operators: tuple[str, ...] = PAST, depth: int = 4, alphabet: str = "ab") -> logic.Formula:
    return logic.random_formula(depth, alphabet, np.random.default_rng(seed), operators)


def spell(text: str, alphabet: str = "abc") -> np.ndarray:
    return np.array([[alphabet.index(letter) for letter in text]])


def by_definition(f: logic.Formula, word: str, i: int) -> bool:
    """The semantics as it is written, position i from 1."""
    truth = [None, *(lambda j, g=g: by_definition(g, word, j) for g in f.operands)]
    match f.operator:
        case "is":
            return word[i - 1] == f.values[0]
        case "not":
            return not truth[1](i)
        case "and":
            return truth[1](i) and truth[2](i)
        case "Y":
            return i > 1 and truth[1](i - 1)
        case "P":
            return any(truth[1](j) for j in range(1, i + 1))
        case "S":
            return any(truth[2](j) and all(truth[1](k) for k in range(j + 1, i + 1)) for j in range(1, i + 1))
        case "mod":
            return i % f.values[0] == f.values[1]
    counts = [sum(g(j) for j in range(1, i + 1)) for g in truth[1:]]
    return sum(a * n for a, n in zip(f.values, counts, strict=False)) >= f.values[-1]


def mismatches(f: logic.Formula, gate: str = "diagonal", arithmetic: tl.FixedPoint = SIX, length: int = 8) -> int:
    words = logic.all_words("ab", length)
    return int((tl.compile_ssm(f, "ab", gate, arithmetic).run(words) != logic.evaluate(f, words, "ab")).sum())


def regular(pattern: str, letters: str) -> DFA:
    return DFA.from_nfa(NFA.from_regex(pattern, input_symbols=set(letters)))


def without_empty(automaton: DFA) -> DFA:
    return automaton.difference(DFA.of_length(automaton.input_symbols, min_length=0, max_length=0))


# Semantics


@pytest.mark.parametrize("seed", range(25))
def test_evaluate_equals_the_definition(seed):
    f = draw(seed, (*PAST, "mod"), 3)
    words = logic.all_words("ab", 5)
    expected = [[by_definition(f, "".join("ab"[a] for a in word), i) for i in range(1, 6)] for word in words]
    np.testing.assert_array_equal(logic.evaluate(f, words, "ab"), expected)


@pytest.mark.parametrize("text", ["#a - #b = 0", "2#a - #(b S a) > 1", "-#a < -2", "#a + #b <= 3 & #b >= 1"])
def test_counting_equals_the_definition(text):
    f, words = logic.parse_pltlf(text), logic.all_words("ab", 6)
    expected = [[by_definition(f, "".join("ab"[a] for a in word), i) for i in range(1, 7)] for word in words]
    np.testing.assert_array_equal(logic.evaluate(f, words, "ab"), expected)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("a S b", "b | (a & Y(a S b))"),
        ("P a", "(a | !a) S a"),
        ("H a", "!P !a"),
        ("a -> b -> c", "!a | (!b | c)"),
        ("a | b & c", "a | (b & c)"),
        ("!a S b", "(!a) S b"),
        ("a S b S c", "(a S b) S c"),
        ("#a = 2", "#a >= 2 & #a < 3"),
        ("P a", "#a > 0"),
        ("MOD(2, 1)", "!MOD(2, 0)"),
    ],
)
def test_equivalent_formulas(left, right):
    words = logic.all_words("abc", 6)
    np.testing.assert_array_equal(*(logic.evaluate(logic.parse_pltlf(text), words, "abc") for text in (left, right)))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_text_of_a_formula_parses_to_its_meaning(seed):
    f = draw(seed, (*PAST, "mod"))
    words = logic.all_words("ab", 5)
    again = logic.parse_pltlf(str(f))
    assert again == f
    np.testing.assert_array_equal(logic.evaluate(again, words, "ab"), logic.evaluate(f, words, "ab"))


def test_prefixes_decide_what_came_before():
    f, word = draw(3), logic.all_words("ab", 9)[137:138]
    whole = logic.evaluate(f, word, "ab")
    for t in range(1, 9):
        np.testing.assert_array_equal(logic.evaluate(f, word[:, :t], "ab"), whole[:, :t])


# Arithmetic


@settings(max_examples=200, deadline=None)
@given(st.floats(-100, 100), st.integers(3, 12), st.integers(0, 2), st.sampled_from(list(tl.ROUNDINGS)))
def test_rounding_equals_exact_fractions(x, bits, frac_bits, rounding):
    code = Fraction(x) * 2**frac_bits
    whole = {"floor": code.__floor__, "nearest": code.__round__, "zero": code.__trunc__}[rounding]()
    expected = Fraction(min(max(whole, -(2 ** (bits - 1))), 2 ** (bits - 1) - 1), 2**frac_bits)
    assert Fraction(float(tl.FixedPoint(bits, frac_bits, rounding).round(np.array(x)))) == expected


def test_wrapping_goes_round():
    np.testing.assert_array_equal(
        tl.FixedPoint(3, 0, saturate=False).round(np.arange(-5, 6)), [3, -4, -3, -2, -1, 0, 1, 2, 3, -4, -3]
    )


def test_affine_equals_a_scalar_loop_in_which_every_operation_is_rounded():
    rng = np.random.default_rng(0)
    weights, bias, x = (SIX.round(rng.normal(scale=3, size=size)) for size in ((3, 5), 3, (5, 2, 4)))
    weights[rng.random((3, 5)) < 0.4] = 0.0
    result = tl.Affine(weights, bias)(x, SIX)
    for out, i, j in np.ndindex(3, 2, 4):
        total = 0.0
        for source in range(5):
            total = float(SIX.round(total + SIX.round(weights[out, source] * x[source, i, j])))
        assert result[out, i, j] == SIX.round(total + bias[out])


def test_a_run_holds_only_numbers_of_its_arithmetic():
    ssm = tl.compile_ssm(logic.parse_pltlf("Y Y a S P b"), "ab")
    x, states = ssm.features(logic.all_words("ab", 9))
    for values in (x, *states):
        assert np.isin(values, SIX.numbers).all()
    assert np.isin(x, [0.0, 1.0]).all()
    accepted, by_word = ssm.run(logic.all_words("ab", 9), return_states=True)
    assert accepted.shape == (512, 9)
    assert [h.shape[:2] for h in by_word] == [(512, 9)] * len(ssm.layers)


def test_rounding_matters_y_reads_wrongly_where_nothing_is_rounded():
    fine = tl.FixedPoint(26, 16)
    ssm = tl.compile_ssm(logic.parse_pltlf("Y a"), "ab")
    words = logic.all_words("ab", 8)
    assert (ssm.run(words) == logic.evaluate(logic.parse_pltlf("Y a"), words, "ab")).all()
    x, _ = replace(ssm, arithmetic=fine).features(words)
    assert not np.isin(x, [0.0, 1.0]).all()
    assert mismatches(logic.parse_pltlf("Y(a & Y b)"), arithmetic=fine) == 0  # its own threshold, compiled for it


# C1, C2: the compiler


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize(
    ("gate", "operators"), [("diagonal", PAST), ("time_invariant", UNARY_MOD), ("mixed", (*PAST, "mod"))]
)
def test_compiled_equals_evaluated(gate, operators, seed):
    assert mismatches(draw(seed, operators), gate) == 0


@pytest.mark.parametrize(
    "arithmetic",
    [
        tl.FixedPoint(6, 2, "nearest"),
        tl.FixedPoint(7, 3),
        tl.FixedPoint(9, 4),
        tl.FixedPoint(20, 10),
        tl.LogPrecision(10, frac_bits=2),
    ],
)
def test_compiled_equals_evaluated_in_other_arithmetic(arithmetic):
    assert all(mismatches(draw(seed), arithmetic=arithmetic) == 0 for seed in range(12))


@pytest.mark.mutation("C1")
def test_counters_that_wrap_around_break_past():
    wrapping = tl.FixedPoint(6, 2, saturate=False)
    assert mismatches(logic.parse_pltlf("P a"), length=9) == 0
    assert mismatches(logic.parse_pltlf("P a"), arithmetic=wrapping, length=9) > 0


@pytest.mark.mutation("C1")
def test_a_gate_that_forgets_the_right_operand_breaks_since():
    ssm = tl.compile_ssm(logic.parse_pltlf("(a | b) S b"), "ab")
    layer = ssm.layers[0]
    open_gate = tl.Affine(0 * layer.gate.weights, 0 * layer.gate.bias + 1)
    words = logic.all_words("ab", 6)
    broken = replace(ssm, layers=(replace(layer, gate=open_gate),)).features(words)[1][0]
    assert not np.isin(broken, [0.0, 1.0]).all()


@pytest.mark.mutation("C2", "C2b")
def test_a_cycle_that_turns_backwards_breaks_mod():
    f, words = logic.parse_pltlf("MOD(3, 1)"), logic.all_words("ab", 6)
    ssm = tl.compile_ssm(f, "ab", "time_invariant")
    backwards = replace(ssm, layers=(replace(ssm.layers[0], gate=ssm.layers[0].gate.T),))
    assert (ssm.run(words) == logic.evaluate(f, words, "ab")).all()
    assert (backwards.run(words) != logic.evaluate(f, words, "ab")).any()


@pytest.mark.parametrize("seed", range(20))
def test_gates_are_of_their_class(seed):
    assert all(layer.diagonal for layer in tl.compile_ssm(draw(seed), "ab").layers)
    constant = tl.compile_ssm(draw(seed, UNARY_MOD), "ab", "time_invariant")
    assert all(layer.time_invariant for layer in constant.layers)
    mixed = tl.compile_ssm(draw(seed, (*PAST, "mod")), "ab", "mixed")
    assert all(layer.diagonal or layer.time_invariant for layer in mixed.layers)
    both = tl.compile_ssm(draw(seed, ("not", "and", "Y", "P")), "ab", "diagonal")
    assert all(layer.diagonal and layer.time_invariant for layer in both.layers)


def test_gate_classes_of_single_layers():
    since = tl.compile_ssm(logic.parse_pltlf("a S b"), "ab").layers[0]
    assert since.diagonal
    assert not since.time_invariant
    cycle = tl.compile_ssm(logic.parse_pltlf("MOD(2, 0)"), "ab", "time_invariant").layers[0]
    assert cycle.time_invariant
    assert not cycle.diagonal
    assert not replace(since, squash=tl.signed).diagonal


def test_size_is_linear_in_the_formula():
    sizes = []
    for depth in range(1, 30):
        f = logic.parse_pltlf("a")
        for _ in range(depth):
            f = logic.Formula("S", (f, logic.parse_pltlf("b")))
        sizes.append(tl.compile_ssm(f, "ab").size)
    assert set(np.diff(sizes, n=2)) == {0}


def test_one_word_alone_equals_the_batch():
    f, words = draw(11), logic.all_words("ab", 8)
    ssm = tl.compile_ssm(f, "ab")
    together = ssm.run(words)
    for row in (0, 77, 255):
        np.testing.assert_array_equal(ssm.run(words[row : row + 1]), together[row : row + 1])


def test_letters_may_be_words_on_a_trace_that_no_notebook_saw():
    names = ("class", "pass", "other")
    with tokenize.open(tokenize.__file__) as file:
        tokens = [token.string for token in tokenize.generate_tokens(file.readline)]
    trace = np.array([[names.index(token) if token in names else 2 for token in tokens]])
    f = logic.parse_pltlf("H(pass -> P class) & !(other S class & Y Y pass)")
    np.testing.assert_array_equal(tl.compile_ssm(f, names).run(trace), logic.evaluate(f, trace, names))


# Automata


@pytest.mark.parametrize(
    ("text", "gate", "pattern", "letters", "star_free"),
    [
        ("a S b", "diagonal", "(a|b|c)*ba*", "abc", True),
        ("P a", "time_invariant", "(a|b)*a(a|b)*", "ab", True),
        ("Y a", "diagonal", "(a|b)*a(a|b)", "ab", True),
        ("H(b -> Y a) & b", "diagonal", "(a|ab)*ab", "ab", True),
        ("MOD(2, 0)", "time_invariant", "((a|b)(a|b))*", "ab", False),
        ("MOD(3, 1) & H a", "mixed", "a(aaa)*", "ab", False),
        ("a & !Y(a | !a)", "diagonal", "a", "ab", True),
        ("a | b", "diagonal", "(a|b)*", "ab", True),
    ],
)
def test_minimal_automaton_equals_the_regular_expression(text, gate, pattern, letters, star_free):
    automaton = tl.to_dfa(tl.compile_ssm(logic.parse_pltlf(text), letters, gate))
    expected = without_empty(regular(pattern, letters))
    assert automaton == expected
    assert len(automaton.to_complete().states) <= len(expected.minify().to_complete().states)
    assert tl.is_star_free(automaton) is star_free


def test_the_automaton_of_a_formula_is_that_of_its_semantics():
    f = draw(5, depth=3)
    automaton, words = tl.to_dfa(tl.compile_ssm(f, "ab")), logic.all_words("ab", 7)
    expected = logic.evaluate(f, words, "ab")[:, -1]
    assert [automaton.accepts_input("".join("ab"[a] for a in word)) for word in words] == expected.tolist()


def test_too_many_states_say_so():
    with pytest.raises(ValueError, match="more than 5 states"):
        tl.to_dfa(tl.compile_ssm(logic.parse_pltlf("#a - #b >= 1"), "ab"), limit=5)
    with pytest.raises(ValueError, match="more than 2 elements"):
        tl.is_star_free(regular("(a|b)*ba*b", "ab"), limit=2)


# C3, C4: settling


def last_changes(allow_negative: bool, count: int = 60) -> np.ndarray:
    nets = tl.random_diagonal_ssms(count, 4, 2, SIX, np.random.default_rng(1), allow_negative)
    return tl.settling_times(nets, "a", 400).reshape(count, 4).max(axis=1)


def test_non_negative_nets_settle_within_the_bound():
    assert last_changes(False).max() < 2 * 2**6


@pytest.mark.mutation("C3", "C4")
def test_only_the_sign_keeps_nets_moving():
    assert (last_changes(True) >= 2 * 2**6).any()
    assert not (last_changes(False) >= 2 * 2**6).any()


def test_nets_side_by_side_are_independent():
    wide = tl.random_diagonal_ssms(3, 2, 1, SIX, np.random.default_rng(4))
    stream = wide.features(np.zeros((1, 30), dtype=int))[0]
    keep = slice(2, 4)

    def cut(m: tl.Affine) -> tl.Affine:
        columns = [2, 3, 8, 9] if m.weights.shape[1] == 12 else [2, 3]
        return tl.Affine(m.weights[keep][:, columns], m.bias[keep])

    layer = wide.layers[0]
    block = layer.output[0]
    alone = replace(
        layer,
        h0=layer.h0[keep],
        gate=cut(layer.gate),
        inc=cut(layer.inc),
        output=(tl.Block(cut(block.hidden), cut(block.out), np.arange(2)),),
    )
    single = replace(wide, embedding=wide.embedding[keep], layers=(alone,))
    np.testing.assert_array_equal(single.features(np.zeros((1, 30), dtype=int))[0], stream[keep])


# C5: counting


def false_accepts(bits: int, frac_bits: int = 0) -> list[str]:
    """Wrongly accepted words a^i b^j c^k in length-then-alphabet order, up to the length of the predicted one."""
    top = 2 ** (bits - 1) - 1
    length = 3 * top + 1
    ends = [(i, j) for i in range(length + 1) for j in range(i, length + 1)]
    words = np.array([[0] * i + [1] * (j - i) + [2] * (length - j) for i, j in ends])
    f = logic.parse_pltlf(EQUAL_COUNTS)
    ssm = tl.compile_ssm(f, "abc", "diagonal", tl.FixedPoint(bits, frac_bits))
    wrong = ssm.run(words) & ~logic.evaluate(f, words, "abc")
    found = {"".join("abc"[a] for a in words[row, : t + 1]) for row, t in np.argwhere(wrong)}
    return sorted(found, key=lambda word: (len(word), word))


def test_equal_counts_are_what_the_formula_says():
    words = logic.all_words("abc", 9)
    truth = logic.evaluate(logic.parse_pltlf(EQUAL_COUNTS), words, "abc")
    accepted = {"".join("abc"[a] for a in words[row, : t + 1]) for row, t in np.argwhere(truth)}
    assert accepted == {"abc", "aabbcc", "aaabbbccc"}


@pytest.mark.parametrize("bits", [3, 4])
def test_the_first_false_accept_is_one_letter_over_the_top(bits):
    top = 2 ** (bits - 1) - 1
    assert false_accepts(bits)[0] == "a" * (top + 1) + "b" * top + "c" * top


@pytest.mark.mutation("C5")
def test_a_constant_width_loses_count():
    word = np.array([[0] * 20 + [1] * 21 + [2] * 21])
    f = logic.parse_pltlf(EQUAL_COUNTS)
    assert not tl.compile_ssm(f, "abc", "diagonal", tl.LogPrecision(62)).run(word)[0, -1]
    assert tl.compile_ssm(f, "abc", "diagonal", tl.FixedPoint(5)).run(word)[0, -1]


@pytest.mark.mutation("C5b")
def test_fractional_bits_move_the_first_false_accept():
    top = 2**3 - 1
    assert false_accepts(4)[0] == "a" * (top + 1) + "b" * top + "c" * top
    assert (false_accepts(4, 1) or [""])[0] != "a" * (top + 1) + "b" * top + "c" * top


@pytest.mark.parametrize("n", [1, 5, 31, 32, 33, 100])
def test_growing_precision_counts(n):
    f = logic.parse_pltlf(EQUAL_COUNTS)
    words = [
        [0] * (n + i) + [1] * (n + j) + [2] * (n + k) for i, j, k in ((0, 0, 0), (1, 0, -1), (0, 1, -1), (-1, 0, 1))
    ]
    ssm = tl.compile_ssm(f, "abc", "diagonal", tl.LogPrecision(3 * n))
    assert ssm.run(np.array(words))[:, -1].tolist() == [True, False, False, False]


# C6: parity


def by_every_acceptance_set(arithmetic: tl.FixedPoint, length: int) -> np.ndarray:
    """The obvious reference: each machine step by step, each of the 2^(2^b) sets of states."""
    numbers = arithmetic.numbers
    sets = list(itertools.product((False, True), repeat=len(numbers)))
    found = np.zeros((len(numbers),) * 3, dtype=bool)
    for index in np.ndindex(*found.shape):
        gate, inc, h = (numbers[i] for i in index)
        path = []
        for _ in range(length):
            h = float(arithmetic.round(arithmetic.round(gate * h) + inc))
            path.append(int(np.flatnonzero(numbers == h)[0]))
        found[index] = any(all(s[p] == (t % 2 == 1) for t, p in enumerate(path)) for s in sets)
    return found


@pytest.mark.parametrize("frac_bits", [0, 1])
def test_the_search_equals_enumeration_of_acceptance_sets(frac_bits):
    arithmetic = tl.FixedPoint(2, frac_bits)
    np.testing.assert_array_equal(tl.even_length_machines(arithmetic, 20), by_every_acceptance_set(arithmetic, 20))


@pytest.mark.mutation("C6")
@pytest.mark.parametrize("frac_bits", [0, 1, 2])
def test_a_negative_gate_finds_parity_and_no_other_does(frac_bits):
    arithmetic = tl.FixedPoint(3, frac_bits)
    found = tl.even_length_machines(arithmetic, 200)
    assert not found[arithmetic.numbers >= 0].any()
    assert found[arithmetic.numbers < 0].any()


def even_lengths(layer: tl.SSMLayer) -> np.ndarray:
    return 1 - layer.states(np.zeros((1, 50, 1)), SIX)[0, :, 0]


@pytest.mark.mutation("C4b")
def test_gate_minus_one_does_parity_and_its_relu_does_not():
    nothing = np.zeros((1, 1))
    flip = tl.SSMLayer(np.zeros(1), tl.Affine(nothing, -np.ones(1)), tl.Affine(nothing, np.ones(1)), squash=tl.signed)
    expected = np.arange(1, 51) % 2 == 0
    np.testing.assert_array_equal(even_lengths(flip), expected)
    assert not flip.diagonal
    assert (even_lengths(replace(flip, squash=tl.SSMLayer.squash)) != expected).any()


@pytest.mark.mutation("C6b")
def test_a_cycle_of_three_is_not_parity():
    words, even = np.zeros((1, 50), dtype=int), np.arange(1, 51) % 2 == 0
    right, wrong = (
        tl.compile_ssm(logic.parse_pltlf(f"MOD({m}, 0)"), "a", "time_invariant").run(words)[0] for m in (2, 3)
    )
    assert (right == even).all()
    assert (wrong != even).any()


def test_the_permutation_recognises_even_lengths():
    ssm = tl.compile_ssm(logic.parse_pltlf("MOD(2, 0)"), "a", "time_invariant")
    accepted = ssm.run(np.zeros((1, 1000), dtype=int))[0]
    np.testing.assert_array_equal(accepted, np.arange(1, 1001) % 2 == 0)


# C8: the conjecture


def test_the_latch_is_since_for_words_of_any_length():
    latch = tl.since_latch()
    assert all(layer.time_invariant and layer.diagonal for layer in latch.layers)
    assert tl.to_dfa(latch) == without_empty(regular("(a|b|c)*ba*", "abc"))
    words = logic.all_words("abc", 8)
    np.testing.assert_array_equal(latch.run(words), logic.evaluate(logic.parse_pltlf("a S b"), words, "abc"))


@pytest.mark.mutation("C8b")
def test_rounding_towards_zero_breaks_the_latch():
    forgetful = replace(tl.since_latch(), arithmetic=tl.FixedPoint(6, 2, "zero"))
    assert tl.to_dfa(forgetful) != without_empty(regular("(a|b|c)*ba*", "abc"))


@pytest.mark.parametrize(("width", "reads_input"), [(1, False), (2, False), (1, True)])
def test_search_equals_a_slow_one_over_words(width, reads_input):
    arithmetic = tl.FixedPoint(2, 1) if width == 2 else tl.FixedPoint(3, 1)
    count = 60
    fast = tl.since_machines(count, width, arithmetic, np.random.default_rng(9), reads_input)
    rng, numbers = np.random.default_rng(9), arithmetic.numbers
    gates = rng.choice(numbers, (count, 3, 1, width) if reads_input else (count, 1, width, width))
    incs = rng.choice(numbers, (count, 3, 1, width))[:, :, 0]
    starts = rng.integers(len(numbers) ** width, size=count)
    words = logic.all_words("abc", 7)
    truth = logic.evaluate(logic.parse_pltlf("a S b"), words, "abc")
    slow = []
    for gate, inc, start in zip(gates, incs, starts, strict=True):
        h0 = np.array([numbers[(start // len(numbers) ** (width - 1 - axis)) % len(numbers)] for axis in range(width)])
        matrix = tl.Affine(gate[0], np.zeros(width))
        h, met = np.repeat(h0[None], len(words), axis=0), [set(), set()]
        for t in range(words.shape[1]):
            letter = words[:, t]
            moved = arithmetic.round(gate[letter, 0] * h) if reads_input else matrix(h.T, arithmetic).T
            h = arithmetic.round(moved + inc[letter])
            for value in (False, True):
                rows = truth[:, t] == value
                met[value] |= {(*state, int(a)) for state, a in zip(h[rows].tolist(), letter[rows], strict=True)}
        slow.append(not met[0] & met[1])
    assert sum(slow) > 0
    np.testing.assert_array_equal(fast, slow)


def test_the_search_finds_the_latch_among_all_layers_of_width_one():
    class Everything:
        """Draws each gate and increments 0, 1, -1 from the state just below zero, instead of at random."""

        def choice(self, numbers: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
            every = np.repeat(numbers, len(numbers)).reshape(-1, 1, 1, 1)
            return every if size[1] == 1 else np.broadcast_to(np.array([0.0, 1.0, -1.0]).reshape(1, 3, 1, 1), size)

        def integers(self, high: int, size: int) -> np.ndarray:
            return np.full(size, high // 2 - 1)

    for rounding, expected in (("floor", True), ("zero", False)):
        arithmetic = tl.FixedPoint(4, 1, rounding)
        found = tl.since_machines(256, 1, arithmetic, Everything())
        assert found[np.repeat(arithmetic.numbers, 16) == 0.5].all() == expected


# Trained layers


@pytest.mark.parametrize("length", [1, 2, 7, 24])
def test_the_scan_equals_the_recurrence(length):
    generator = torch.Generator().manual_seed(0)
    inc, gate = (torch.randn(2, 3, length, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    matrix = torch.randn(2, 4, 4, generator=generator, dtype=torch.float64) / 2
    for gates in (gate, matrix):
        h, expected = torch.zeros(2, 3, 4, dtype=torch.float64), []
        for t in range(length):
            moved = gates[:, :, t] * h if gates.ndim == 4 else torch.einsum("sij,sbj->sbi", gates, h)
            h = moved + inc[:, :, t]
            expected.append(h)
        torch.testing.assert_close(tl.linear_scan(gates, inc), torch.stack(expected, dim=2))


def test_gradient_of_the_scan():
    generator = torch.Generator().manual_seed(1)
    inc, gate = (
        torch.randn(1, 2, 5, 2, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(2)
    )
    matrix = torch.randn(1, 2, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(tl.linear_scan, (gate, inc))
    assert torch.autograd.gradcheck(tl.linear_scan, (matrix, inc))


@pytest.mark.parametrize("gates", [["diagonal", "time_invariant"], ["signed"]])
def test_many_bits_equal_the_trained_network(gates):
    model = tl.train_layers("since", gates, 2, 8, 3, torch.Generator().manual_seed(0))
    words = logic.all_words("abc", 4)
    with torch.no_grad():
        logits = model(torch.from_numpy(words.copy()).expand(2, -1, -1))[1].numpy()
    accepted = model.to_ssm(1, tl.FixedPoint(26, 18, "nearest")).run(words)
    clear = np.abs(logits) > 1e-3
    assert clear.mean() > 0.9
    np.testing.assert_array_equal(accepted[clear], (logits > 0)[clear])


def test_the_time_invariant_gate_is_orthogonal():
    gate = tl.TrainableSSM(3, ["time_invariant"], torch.Generator()).matrix(0)
    torch.testing.assert_close(gate @ gate.mT, torch.eye(16).expand(3, -1, -1), atol=1e-4, rtol=0)


def test_copies_train_apart_and_a_run_repeats_itself():
    def fit() -> torch.Tensor:
        return tl.train_layers("mod2", ["diagonal"], 2, 8, 3, torch.Generator().manual_seed(5)).embedding.detach()

    before, first = torch.random.get_rng_state(), fit()
    torch.testing.assert_close(first, fit(), atol=0, rtol=0)
    assert not torch.allclose(first[0], first[1])
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_diagonal_layer_learns_since():
    model = tl.train_layers("since", ["diagonal"] * 2, 2, 16, 120, torch.Generator().manual_seed(0))
    accuracy = tl.accuracy_by_position(model, "since", 64, 32, torch.Generator().manual_seed(1))
    assert accuracy.shape == (2, 32)
    assert accuracy.mean() > 0.95


# Bad input


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found the end"),
        ("a S", "found the end"),
        ("a b", "expected the end, found 'b'"),
        ("(a", r"expected \)"),
        ("a & & b", "found '&'"),
        ("a $ b", r"found '\$'"),
        ("S a", "found 'S'"),
        ("#a", "expected < or <="),
        ("#a >= b", "expected a number"),
        ("MOD(2, 2)", "0 <= r < m"),
        ("MOD(a, 1)", "expected a number"),
        ("!", "found the end"),
    ],
)
def test_text_that_is_no_formula_says_where(text, message):
    with pytest.raises(ValueError, match=message):
        logic.parse_pltlf(text)


def test_an_undefined_proposition_is_refused():
    f = logic.parse_pltlf("a S d")
    with pytest.raises(ValueError, match=r"'d' is not in the alphabet \('a', 'b'\)"):
        tl.compile_ssm(f, "ab")
    with pytest.raises(ValueError, match="'d' is not in the alphabet"):
        logic.evaluate(f, logic.all_words("ab", 2), ("a", "b"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (np.zeros((3, 0), dtype=int), "empty word"),
        (np.zeros(3, dtype=int), r"\(N, T\) integer array"),
        (np.full((1, 2), np.nan), r"\(N, T\) integer array"),
        (np.array([[0, 2]]), "outside 0..1"),
        (np.array([[-1]]), "outside 0..1"),
    ],
)
def test_bad_words_are_refused(words, message):
    f = logic.parse_pltlf("a")
    for method in (lambda: logic.evaluate(f, words, "ab"), lambda: tl.compile_ssm(f, "ab").run(words)):
        with pytest.raises(ValueError, match=message):
            method()


def test_no_words_are_no_error():
    assert tl.compile_ssm(logic.parse_pltlf("P a"), "ab").run(np.zeros((0, 3), dtype=int)).shape == (0, 3)


@pytest.mark.parametrize(
    ("text", "gate", "message"),
    [
        ("P(a S b)", "time_invariant", r"no time_invariant gate expresses \(a S b\): compile with gate='diagonal'"),
        ("Y MOD(2, 0)", "diagonal", r"no diagonal gate expresses MOD\(2, 0\).*'time_invariant' or gate='mixed'"),
        ("a", "diagonl", "did you mean 'diagonal'"),
    ],
)
def test_what_a_gate_class_cannot_express_is_refused(text, gate, message):
    with pytest.raises(ValueError, match=message):
        tl.compile_ssm(logic.parse_pltlf(text), "ab", gate)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tl.FixedPoint(1), "2..26, not 1"),
        (lambda: tl.FixedPoint(27), "2..26, not 27"),
        (lambda: tl.FixedPoint(4, 4), "frac_bits must lie in 0..3"),
        (lambda: tl.FixedPoint(4, -1), "frac_bits must lie in 0..3"),
        (lambda: tl.FixedPoint(4, 1, "flor"), "did you mean 'floor'"),
        (lambda: tl.LogPrecision(0), "at least 1"),
        (lambda: logic.all_words("ab", 0), "empty word"),
        (lambda: tl.compile_ssm(logic.parse_pltlf("Y a"), "ab", arithmetic=tl.FixedPoint(6, 1)), "number 0.25"),
        (lambda: tl.compile_ssm(logic.parse_pltlf("Y a"), "ab", arithmetic=tl.FixedPoint(5, 2)), "number"),
        (lambda: tl.compile_ssm(logic.parse_pltlf("#a >= 9"), "ab"), "number -9"),
        (lambda: tl.compile_ssm(logic.parse_pltlf("a & Y b"), "ab", arithmetic=tl.FixedPoint(2, 0)), "raise bits"),
        (lambda: tl.settling_times(tl.since_latch(), "d", 5), "no letter 'd'"),
        (lambda: logic.random_formula(2, "ab", np.random.default_rng(0), ("Z",)), "no operator"),
        (lambda: tl.TrainableSSM(1, ["diagnal"], torch.Generator()), "did you mean 'diagonal'"),
        (lambda: tl.task_batch("sinse", 1, 1, 8, torch.Generator()), "did you mean 'since'"),
    ],
)
def test_values_out_of_range_say_what_to_do(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "values",
    [
        {"alphabet": "a"},
        {"alphabet": "aa"},
        {"bits": 27},
        {"tasks": ["copy"]},
        {"depth": 3},
        {"alphabet": "abcd"},
        {"bits": 6, "frac_bits": 3},
    ],
)
def test_parameters_are_checked(values):
    with pytest.raises(ValidationError):
        tl.Parameters(**values)
