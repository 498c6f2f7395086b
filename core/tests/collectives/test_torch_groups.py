from __future__ import annotations


def test_torch_runs_on_a_group_of_one(world):
    world("torch_groups.py", "functions_alone", 1)


def test_torch_runs_on_a_group(world):
    world("torch_groups.py", "as_a_process_group", 2)


def test_torch_runs_in_a_world_of_trivet(world):
    world("torch_groups.py", "as_a_backend", 2)
