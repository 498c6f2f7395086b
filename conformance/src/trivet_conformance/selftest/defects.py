"""Classes of defects, and which mutants stand for each.

The classes come from defects that kernels, plugins and their runtimes were reported with. Some
need operators, memory or collectives that the suite does not ask for yet; those have no mutant,
and ``NOT_YET`` says why. Numbers stay: reports and mutants name classes by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

CLASSES: Final[Mapping[int, tuple[str, tuple[str, ...]]]] = MappingProxyType(
    {
        1: ("epsilon dropped", ("eps_dropped",)),
        2: ("epsilon outside the root", ("eps_outside_the_root", "eps_beside_the_deviation")),
        3: ("another epsilon", ("eps_always_the_default",)),
        4: ("divisor n - 1", ("divides_by_n_minus_one", "variance_of_a_sample")),
        5: ("mean removed", ("mean_removed_from_long_rows",)),
        6: ("one added to the weight", ("one_added_to_float32_weights",)),
        7: ("sums in half precision", ("accumulates_in_bfloat16",)),
        8: ("squares overflow in float16", ("squares_overflow_in_float16",)),
        9: ("a gain of two per mille", ("gain_of_two_per_mille",)),
        10: ("numbers through eight bits", ("weights_through_eight_bits", "weights_in_eight_bits")),
        11: ("zeros", ("returns_zeros",)),
        12: ("small numbers flushed", ("small_results_become_zero",)),
        13: ("numbers clamped", ("gate_clamped",)),
        14: (
            "halves in the wrong place",
            ("halves_swapped", "halves_cut_for_even_sizes", "gelu_of_the_second_half"),
        ),
        15: (
            "another activation",
            ("gelu_for_silu", "tanh_for_erf"),
        ),
        16: ("an exponential overflows", ("exponential_overflows",)),
        17: ("NaN hidden", ("nan_becomes_zero",)),
        18: ("rotation pairs ignored", ("pairing_ignored",)),
        19: (
            "sine of the wrong sign",
            ("sine_of_the_wrong_sign", "sine_of_interleaved_pairs_negated"),
        ),
        20: ("positions start again", ("positions_of_the_first_sequence",)),
        21: ("an index of sixteen bits", ("ids_in_sixteen_bits", "rows_of_sixteen_bits")),
        22: ("angles in half precision", ("angles_in_half_precision",)),
        23: ("softmax without its maximum", ("maximum_not_subtracted",)),
        24: ("causal mask off by one", ("sees_one_key_too_many",)),
        25: ("scores scaled wrongly", ("half_of_the_soft_cap",)),
        26: ("heads dealt in turn", ("heads_dealt_in_turn", "dense_heads_dealt_in_turn")),
        28: ("what no key of a page holds counts", ("tail_of_the_last_page_masked_by_zero",)),
        29: ("a key in the wrong slot", ("blocks_of_sixteen_assumed",)),
        30: ("negative slots written", ("negative_slot_written",)),
        31: ("residual not updated", ("residual_of_the_last_rows_kept",)),
        36: ("declared deterministic, and is not", ("declared_deterministic_and_is_not",)),
        37: ("an input written", ("mutates_its_input", "keys_turned_in_place")),
        38: ("a result shares memory", ("result_in_the_input",)),
        39: ("dense rows assumed", ("assumes_contiguous_rows",)),
        41: ("a tail unwritten", ("tail_unwritten", "values_without_their_last_head")),
        42: ("memory past the end written", ("writes_past_the_end",)),
        43: ("rows beyond 64 repeat", ("rows_after_64_repeat",)),
        45: ("kept by pointer", ("keeps_the_first_weight_of_a_tensor",)),
        46: ("wrong after many calls", ("wrong_after_ten_calls",)),
        50: ("another shape or stride", ("leading_dims_folded", "result_transposed_in_memory")),
        51: ("claimed, and raises", ("claims_what_it_cannot", "claims_and_raises")),
        52: ("not claimed, and silently wrong", ("wrong_outside_in_silence",)),
        53: ("a tensor that could be lazy", ("tensor_subclass",)),
        54: (
            "a domain that allocates or changes",
            ("allocates_while_it_decides", "decides_by_a_counter"),
        ),
        55: ("float32 for a half type", ("returns_float32",)),
        56: (
            "sums that depend on the batch",
            ("small_batches_summed_wide", "small_batches_drawn_wide"),
        ),
        101: ("sliding window off by one", ("window_off_by_one", "dense_window_off_by_one")),
        102: ("soft cap ignored", ("soft_cap_ignored",)),
        103: (
            "bias forgotten",
            ("bias_forgotten", "bias_forgotten_for_one_row", "shift_forgotten"),
        ),
        104: ("rotary dims taken for the head", ("whole_heads_turned",)),
        105: ("the last numbers never looked at", ("last_of_the_vocabulary_missed",)),
        106: ("one buffer for all calls", ("one_buffer_for_all_calls",)),
        107: ("forms of one provider differ", ("forms_that_differ",)),
        108: ("gaps between rows written", ("scribbles_between_rows",)),
        109: ("a parameter written", ("writes_the_bias_back",)),
        110: ("a dense parameter assumed", ("assumes_a_dense_bias",)),
        111: ("dense token stride assumed", ("assumes_own_token_stride",)),
        112: ("refused with an error of its own", ("refuses_with_its_own_error",)),
        113: ("a scalar dropped outside", ("offset_dropped_outside",)),
        114: ("views that cannot be flattened", ("crashes_on_strided_weights",)),
        115: ("another container", ("list_for_a_tuple",)),
        116: ("denormals of the input flushed", ("denormals_become_zero",)),
        117: ("infinity clamped", ("infinity_clamped",)),
        118: ("zero times infinity skipped", ("skips_zero_inputs",)),
        119: ("NaN never chosen", ("nan_never_chosen",)),
        120: ("empty calls raise", ("empty_call_raises",)),
        121: ("long rows summed in part", ("sum_cut_at_2048",)),
        122: ("one grid of threads without a loop", ("columns_of_one_grid_only",)),
        123: ("wide tokens copied in part", ("one_block_of_threads_a_token",)),
        124: ("a rank of its own", ("right_for_one_rank_only",)),
        125: ("broken after an error", ("stays_broken_after_an_error",)),
        126: ("zeros for what is no call", ("zeros_for_no_dims",)),
        127: ("no refusal of a narrow parameter", ("breaks_down_on_a_narrow_weight",)),
        128: ("a schedule of an earlier step", ("schedule_of_the_first_step",)),
        129: ("a square expanded, and cancelled", ("square_of_the_sum_expanded",)),
        130: ("half of a fused operator", ("norm_of_x_alone", "residual_as_it_was")),
        131: ("a pack for another weight", ("pack_cached_by_shape",)),
        132: ("a pack that shares memory", ("pack_is_a_view",)),
        133: ("a pack that turns square weights", ("square_pack_transposed",)),
        134: ("the weight written by its pack", ("prepare_writes_the_weight",)),
        135: ("rows chosen by a product", ("rows_chosen_by_a_product",)),
        136: ("numbers of pages decide bits", ("physical_pages_decide_bits",)),
        137: ("the caches of another call", ("reads_what_was_written_last",)),
        138: ("state of another operator", ("keeps_a_weight_after_another",)),
        139: ("another operator changes the rounding", ("another_rounds_for_it",)),
        140: ("works only after another operator", ("works_only_after_another",)),
        141: ("the mean of a prefix taken over the row", ("variance_of_the_whole_row",)),
        142: ("the weight of another part", ("weight_of_the_queries_for_both",)),
        143: ("heads normalised as one row", ("all_heads_as_one_row",)),
        144: ("written before it is turned", ("keys_as_they_were",)),
        145: ("skipped whole where a part is skipped", ("queries_of_skipped_tokens_kept",)),
        146: ("a seed ignored", ("seed_ignored",)),
        147: ("noise that depends on the batch", ("noise_keyed_by_row",)),
        148: ("a limit of sampling off by one", ("top_k_off_by_one", "top_p_keeps_one_too_few")),
        149: ("temperature ignored", ("temperature_ignored",)),
        150: ("what is no answer penalised", ("padding_counted", "penalty_over_the_prompt")),
        151: ("positions aligned at the start", ("positions_aligned_at_the_start",)),
        152: ("a mask ignored for a head", ("mask_ignored_for_one_head",)),
        153: ("NaN where nothing is seen", ("hidden_rows_are_nan",)),
        154: ("a mask that is capped", ("mask_before_the_soft_cap",)),
        155: ("a variance that cancels", ("variance_by_difference",)),
        156: ("never sampled", ("greedy_for_sampled",)),
        157: ("a branch on numbers, in a graph", ("asks_the_host",)),
        158: ("written where no capture sees it", ("writes_behind_torch",)),
        159: ("kept from before the capture", ("keeps_the_last_result",)),
    }
)
"""Number -> (what is wrong, the mutants that have it)."""

NOT_YET: Final[Mapping[str, str]] = MappingProxyType(
    {
        "33-35": "quantised and mixture-of-experts operators are not in the catalogue",
        "40": "a tensor of more than 2^31 elements does not fit the memory of most test machines",
        "57-76": "the suite asks nothing of the memory contract yet",
        "77-90": "the suite asks nothing of the collectives contract yet",
    }
)
"""Classes without a mutant, and why."""

NUMBERS: Final[Mapping[str, int]] = MappingProxyType(
    {name: number for number, (_, names) in CLASSES.items() for name in names}
)
"""Mutant -> its class."""
