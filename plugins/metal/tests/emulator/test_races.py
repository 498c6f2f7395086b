"""Random programs of accesses and barriers: a race is found exactly where there is one."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

import trivet_metal_emulator as emulator

NOTHING, WRITE, READ, ATOMIC, BARRIER, BARRIER_OF_NOTHING, SIMD_BARRIER = range(7)
SLOTS, STEPS, THREADS, WIDTH = 3, 7, 64, 32
ACTORS = (0, 1, 32, 33)  # two lanes of each simdgroup do something, the others come to the barriers
TEXT = """#include <metal_stdlib>
using namespace metal;
kernel void play(device const int* ops [[buffer(0)]], device const int* slots [[buffer(1)]],
                 device int* out [[buffer(2)]], constant int& steps [[buffer(3)]],
                 device int* far [[buffer(4)]], uint i [[thread_position_in_threadgroup]],
                 uint size [[threads_per_threadgroup]]) {
  threadgroup int near[SLOTS];
  if (i == 0)
    for (int k = 0; k < SLOTS; k++) MEMORY[k] = 0;
  threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
  int sum = 0;
  for (int s = 0; s < steps; s++) {
    int op = ops[uint(s) * size + i], slot = slots[uint(s) * size + i];
    if (op == 1) MEMORY[slot] = s;
    if (op == 2) sum += MEMORY[slot];
    SPACE atomic_int* counter = (SPACE atomic_int*)&MEMORY[slot];
    if (op == 3) atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
    if (op == 4) threadgroup_barrier(mem_flags::mem_SPACE);
    if (op == 5) threadgroup_barrier(mem_flags::mem_none);
    if (op == 6) simdgroup_barrier(mem_flags::mem_SPACE);
  }
  out[i] = sum;
}
""".replace("SLOTS", str(SLOTS))
MEMORIES = {"threadgroup": "near", "device": "far"}


@pytest.fixture(scope="module", params=MEMORIES)
def library(request):
    text = TEXT.replace("SPACE", request.param).replace("MEMORY", MEMORIES[request.param])
    return emulator.compile_shader(text, name="play.metal")


def _program(draw: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
    ops = torch.zeros(STEPS, THREADS, dtype=torch.int32)
    slots = torch.zeros(STEPS, THREADS, dtype=torch.int32)
    for step in range(STEPS):
        kind = draw.random()
        if kind < 0.25:
            ops[step] = draw.choice((BARRIER, BARRIER, BARRIER_OF_NOTHING))
        elif kind < 0.5:
            for simdgroup in draw.choice(((0,), (1,), (0, 1))):
                ops[step, simdgroup * WIDTH :][:WIDTH] = SIMD_BARRIER
        else:
            for thread in draw.sample(ACTORS, draw.choice((1, 1, 2))):
                ops[step, thread] = draw.choice((WRITE, READ, READ, ATOMIC))
                slots[step, thread] = draw.randrange(SLOTS)
    return ops, slots


def _ordered(ops: list[list[int]], first: tuple[int, int], second: tuple[int, int]) -> bool:
    """Whether a barrier stands between two accesses, (step, thread) each."""
    (early, a), (late, b) = first, second
    return any(
        ops[step][a] == BARRIER or (a // WIDTH == b // WIDTH and ops[step][a] == SIMD_BARRIER)
        for step in range(early + 1, late)
    )


def _has_race(ops: list[list[int]], slots: list[list[int]]) -> bool:
    accesses = [
        (step, thread)
        for step in range(STEPS)
        for thread in ACTORS
        if ops[step][thread] in {WRITE, READ, ATOMIC}
    ]
    for first, second in itertools.combinations(accesses, 2):
        (s, a), (t, b) = first, second
        kinds = {ops[s][a], ops[t][b]}
        apart = a != b and slots[s][a] == slots[t][b]
        if apart and kinds not in ({READ}, {ATOMIC}) and not _ordered(ops, first, second):
            return True
    return False


def _run(library, ops, slots, out, far) -> set[str]:
    try:
        library.play(ops, slots, out, STEPS, far, threads=THREADS, group_size=THREADS)
    except emulator.KernelFault as fault:
        return {one.kind for one in fault.findings}
    return set()


def test_a_race_is_found_exactly_where_there_is_one(library):
    draw = random.Random(1)  # noqa: S311 - reproducible programs, no secrets
    races = 0
    for number in range(250):
        ops, slots = _program(draw)
        library.seed = number % 4
        out, far = torch.zeros(THREADS, dtype=torch.int32), torch.zeros(SLOTS, dtype=torch.int32)
        kinds = _run(library, ops, slots, out, far)
        assert kinds <= {"race"}
        found = bool(kinds)
        told = (number, ops[:, ACTORS].tolist(), slots[:, ACTORS].tolist())
        assert found == _has_race(ops.tolist(), slots.tolist()), told
        races += found
    assert 50 < races < 200  # both answers are asked for
