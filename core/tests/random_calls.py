"""Random calls, domain terms and true facts of three operators, for hypothesis."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from stand_ins import OPS
from trivet.contracts import (
    absent,
    between,
    contiguous,
    divisible,
    dtype,
    equal,
    implements,
    offset_aligned,
    one_of,
    present,
    rank,
    rows,
)
from trivet.contracts.implementation import claims_of
from trivet.contracts.terms import Interval
from trivet.plugins.verification import Implementation
from trivet.selection.facts import Call

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SIZES = st.sampled_from([0, 1, 1, 2, 3, 4, 8, 16])


@st.composite
def strided(draw, shape, kind):
    """A tensor of that shape: dense, cut out of a wider one, transposed, expanded, or shifted."""
    offset = draw(st.sampled_from([0, 0, 1, 4, 8]))
    layout = draw(st.sampled_from(["dense", "dense", "wide", "turned", "expanded", "padded"]))
    size = list(shape)
    if layout == "wide" and size:
        size[-1] += draw(st.sampled_from([0, 1, 8]))
    if layout == "padded" and len(size) > 1:
        size[0 if len(size) == 2 else 1] += 1
    if layout == "expanded" and len(size) > 1:
        size[draw(st.integers(0, len(size) - 2))] = 1
    if layout == "turned" and len(size) > 1:
        size[0], size[-1] = size[-1], size[0]
    base = torch.zeros(offset + int(torch.Size(size).numel()), dtype=kind)[offset:].view(size)
    if layout == "turned" and len(size) > 1:
        base = base.transpose(0, -1)
    if layout == "expanded":
        return base.expand(shape)
    return base[tuple(slice(0, s) for s in shape)]


@st.composite
def norm_calls(draw):
    kind, hidden = draw(st.sampled_from(DTYPES)), draw(SIZES)
    lead = draw(st.lists(SIZES, max_size=3))
    return OPS["rms_norm"], {
        "x": draw(strided([*lead, hidden], kind)),
        "weight": torch.ones(hidden, dtype=draw(st.sampled_from([kind, torch.float32]))),
        "eps": draw(st.sampled_from([1e-6, 1e-5])),
        "weight_offset": draw(st.sampled_from([0.0, 1.0])),
        "weight_in_float32": draw(st.booleans()),
        "variance_size": draw(st.sampled_from([0, 1])),
    }


@st.composite
def rotary_calls(draw):
    kind, width = draw(st.sampled_from(DTYPES)), draw(st.sampled_from([2, 4, 8]))
    lead = draw(st.lists(SIZES, min_size=1, max_size=2))
    heads = [draw(st.integers(1, 4)) for _ in range(2)]
    other = draw(st.sampled_from([kind, torch.float32]))
    k = draw(st.none() | strided([*lead, heads[1], width], other))
    angle = torch.zeros(*lead, width // 2)
    return OPS["rotary_embedding"], {
        "q": draw(strided([*lead, heads[0], width], kind)),
        "k": k,
        "cos": angle,
        "sin": angle,
        "pairing": draw(st.sampled_from(["neox", "interleaved"])),
    }


@st.composite
def packed_calls(draw):
    kind, width, out = draw(st.sampled_from(DTYPES)), draw(SIZES), draw(st.sampled_from([1, 4, 6]))
    lead = draw(st.lists(SIZES, max_size=2))
    packed = draw(st.sampled_from([[], [torch.zeros(out, width, dtype=kind)]]))
    return OPS["linear_packed"], {
        "x": draw(strided([*lead, width], kind)),
        "packed": packed,
        "out_features": out,
        "bias": draw(st.none() | strided([out], kind)),
    }


def calls():
    return st.one_of(norm_calls(), rotary_calls(), packed_calls())


def layout_terms(arg):
    return [
        contiguous(arg),
        rows(arg),
        rows(arg, 4),
        rows(arg, 8),
        offset_aligned(arg, 16),
        offset_aligned(arg, 8),
        rank(arg, 2),
        rank(arg, 1, 3),
        one_of(f"{arg}.rank", 2, 4),
        between(f"{arg}.rank", 1, 2),
        dtype(arg, "float32"),
        dtype(arg, "bfloat16", "float16"),
    ]


POOLS = {
    "rms_norm": [
        *layout_terms("x"),
        equal("weight.dtype", "x.dtype"),
        equal("weight.dtype", torch.float32),
        equal("tokens", "hidden"),
        equal("hidden", 8),
        divisible("hidden", 4),
        divisible("hidden", 8),
        divisible("tokens", 2),
        between("tokens", 1, 4),
        between("tokens", 5, None),
        between("hidden", None, 8),
        one_of("tokens", 1, 2, 8),
        one_of("eps", 1e-5),
        one_of("weight_offset", 0.0),
        one_of("weight_in_float32", True),
        one_of("variance_size", 0),
    ],
    "rotary_embedding": [
        *layout_terms("q"),
        *layout_terms("k"),
        equal("k.dtype", "q.dtype"),
        equal("kv_heads", "heads"),
        absent("k"),
        present("k"),
        divisible("head_dim", 4),
        between("kv_heads", 1, 2),
        between("tokens", 1, 4),
        one_of("pairing", "neox"),
    ],
    "linear_packed": [
        *layout_terms("x"),
        *layout_terms("bias"),
        absent("bias"),
        present("bias"),
        present("packed"),
        absent("packed"),
        divisible("out_features", 4),
        between("out_features", 1, 4),
        equal("in_features", "out_features"),
        equal("bias.dtype", "x.dtype"),
        between("tokens", 1, 4),
    ],
}


@st.composite
def facts_of(draw, op, arguments):
    """A random subset of what is true of a call, in the words of facts."""
    call, found = Call(op, arguments), {}
    for path in draw(st.sets(st.sampled_from(sorted(set(op.where) | set(op.parameters))))):
        value = call.value(path)
        parameter = op.parameters.get(path)
        if parameter is not None and not parameter.scalar:
            if value is None:
                found[path] = None
            elif parameter.optional or not parameter.tensor:
                found[path] = "given"
        elif type(value) is int and draw(st.booleans()):
            low, high = draw(st.integers(0, 3)), draw(st.integers(0, 9))
            found[path] = Interval(max(0, value - low), value + high)
        elif isinstance(value, (int, float, str)):
            found[path] = value
    for arg in op.tensors:
        tensor = arguments[arg]
        if tensor is None:
            continue
        if draw(st.booleans()):
            found[f"{arg}.dtype"] = tensor.dtype
        if op.shapes[arg].star and draw(st.booleans()):
            found[f"{arg}.rank"] = tensor.dim()
        if tensor.is_contiguous() and draw(st.booleans()):
            found[f"{arg}.contiguous"] = True
    return found


def arm(index):
    name = f"arm_{index}"
    space = {}
    for op in POOLS:
        signature = OPS[op].signature.text()
        exec(f"def {name}_{op}({signature}):\n    return {index}", space)  # noqa: S102  # no text from outside
    return {op: space[f"{name}_{op}"] for op in POOLS}


ARMS = [arm(i) for i in range(6)]


@st.composite
def several_arms(draw):
    op, arguments = draw(calls())
    terms = st.lists(st.sampled_from(POOLS[op.name]), max_size=4, unique=True)
    shared = draw(terms)
    domains = draw(st.lists(terms, min_size=1, max_size=len(ARMS)))
    domains = [[*shared, *d] if draw(st.booleans()) else d for d in domains]
    return op, arguments, [tuple(dict.fromkeys(d)) for d in domains], draw(facts_of(op, arguments))


def candidates(op, domains):
    for i, domain in enumerate(domains):
        function = ARMS[i][op.name]
        (claim,) = claims_of(implements(f"{op.name}@1", name=f"k{i}", domain=domain)(function))[-1:]
        function.__trivet__ = ()
        yield Implementation(f"acme/k{i}", op, "functional", claim)
