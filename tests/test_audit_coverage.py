"""What the page "What the audit covers" says of each thing that it names: a program shows it."""

import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from corpus import Case, cases, f32
from jax import lax

import lox
from lox._audit._baseline import Baseline, write_baseline

PAGE = Path(__file__).parent.parent / "docs/audit-coverage.md"
CORPUS = {case.name: case for case in cases()}
TIME_BATCH = {"x": ("time", "batch"), "y": ("time", "batch")}
COUNT = {"calls": 1.0}


def tiny(*args, **options):
    """A program that only this page needs."""
    return lambda fun: CORPUS.update({fun.__name__: Case("coverage", fun.__name__, "", True, fun, args, options)})


@tiny(f32(16, 16), f32(16, 16), axes=TIME_BATCH)
def a_result_of_vmap_with_the_batch_in_the_other_place(x, y):
    return jax.vmap(jnp.tanh, out_axes=1)(x) - y


@tiny(f32(16, 16), f32(16), axes={"x": ("time", "batch"), "mean": ("batch",)})
def a_mean_that_is_expanded_at_the_wrong_end(x, mean):
    return x - jnp.expand_dims(mean, 1)


@tiny(f32(4, 8))
def a_mean_over_an_axis_that_no_vmap_has(x):
    return jax.vmap(lambda row: lax.pmean(row, "devices"), axis_name="data")(x)


@tiny(f32(1, 8), f32(1, 32, 8))
def a_step_on_devices_that_averages_nothing(weights, x):
    return jax.pmap(lambda weights, x: weights - jax.grad(lambda w: ((x @ w) ** 2).mean())(weights))(weights, x)


@tiny(f32(64, 8), f32(8, 8))
def an_embedding_beside_raw_observations(obs, weights):
    normalized = (obs - obs.mean(0)) / (obs.std(0) + 1e-6)
    return obs + jnp.tanh(normalized @ weights)


@tiny(f32(16), f32(16, 1))
def differences_of_a_row_and_a_column(row, column):
    return row - column


@tiny(f32(32, 20, 4), axes={"obs": ("batch", "time", None)})
def the_first_of_each_sequence_where_nothing_is_declared(obs):
    return jax.vmap(lambda obs: obs[0])(obs)


@tiny(f32(4, 4), f32(32, 4), f32(32, 4))
def a_step_whose_gradient_is_of_the_sum_of_no_batch(weights, x, y):
    return jax.grad(lambda weights: ((x @ weights - y) ** 2).mean(axis=1))(weights)


@tiny({"w": f32(3, 3), "b": f32(3, 3)})
def parameters_in_another_order(params):
    return jax.tree.unflatten(jax.tree.structure(params), jax.tree.leaves(params)[::-1])


@tiny(f32(3), f32(3))
def a_cell_whose_state_is_dropped(h, x):
    def cell(h, x):
        h = jnp.tanh(h + x)
        return h, h.sum()

    hidden, output = cell(h, x)
    return h, output


@tiny({"w": f32(3)}, {"v": f32(3)})
def gradients_of_other_parameters(params, grads):
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


@tiny(f32(8), differentiate="w")
def a_straight_through_estimator_of_another_value(w):
    return ((w + lax.stop_gradient(w - jnp.round(w))) ** 2).sum()


@tiny(f32(8, 4), f32(16, 8), f32(16, 8), f32(16))
def an_update_whose_target_moves(w, obs, next_obs, reward):
    def loss(w):
        value, target = (jnp.tanh(x @ w).sum(-1) for x in (obs, next_obs))
        return ((reward + 0.99 * target - value) ** 2).mean()

    return w - 0.1 * jax.grad(loss)(w)


@tiny(f32(3))
def what_reads_a_dict_that_others_may_change(x):
    return jax.jit(lambda x: x * COUNT["calls"])(x)


@tiny(f32(8))
def a_statement_without_effect(x):
    jnp.exp(x)
    return jnp.tanh(x)


NOTHING = None
"""What is expected where the page says that a mistake is not found."""

ROWS = {
    "Overview": {
        "New and changed code": [],  # tests/test_audit_recorder.py shows it.
        "What a change breaks": [],  # The last test below shows it.
    },
    "Data flow": {
        "From input to output": [
            ("rollout_in_which_all_of_an_episode_is_reset", "scan[100]"),
            ("rollout_in_which_all_of_an_episode_is_reset", "hidden = jnp.tanh("),
        ],
        "Each value on the way": [
            ("a_layer_over_features", "float32[8 batch, 4] in [-1, 1]"),
        ],
        "Used, merged, dropped": [
            ("predictions_for_one_observation_in_all_lanes", "never used"),
            ("a_statement_without_effect", "dropped"),
            ("predictions_for_one_observation_in_all_lanes", "LOX310"),
            ("oscillator_whose_energy_is_summed_and_dropped", "LOX209"),
            ("a_layer_that_forgets_the_noise_of_its_input", "LOX706"),
        ],
        "Same shape, other meaning": [
            ("cross_entropy_of_a_network_that_ends_in_a_softmax", "LOX813"),
            ("a_simulation_that_returns_the_key_it_has_drawn_from", "LOX705"),
            ("an_embedding_beside_raw_observations", NOTHING),
        ],
        "Each axis on its way": [("gae", "scan[32 time]"), ("a_layer_over_features", "float32[8 batch, 16 feature]")],
        "Silent broadcasting": [
            ("squared_error_of_a_column_and_a_row", "LOX104"),
            ("attention_that_is_normalized_over_queries", "LOX107"),
            ("differences_to_the_transposed", "LOX110"),
            ("advantages_of_transposed_values", "LOX101"),
            ("differences_of_a_row_and_a_column", NOTHING),
        ],
    },
    "Axes": {
        "What vmap maps": [
            ("a_result_of_vmap_with_the_batch_in_the_other_place", "LOX101"),
            ("a_layer_whose_weights_are_mapped_like_a_batch", "LOX102"),
            ("gae_that_is_mapped_over_time", "LOX106"),
            ("values_of_actions_of_agents_by_environment", "LOX311"),
        ],
        "What scan gets and returns": [
            ("recurrent_state_that_starts_without_its_batch", "LOX200"),
            ("simulation_whose_step_forgets_the_velocity", "LOX201"),
            ("returns_over_one_value_too_many", "LOX202"),
        ],
        "Reshapes": [
            ("batch_first_by_reshape", "LOX103"),
            ("a_loss_that_squeezes_all_axes_of_size_1", "LOX109"),
            ("a_mean_that_is_expanded_at_the_wrong_end", "LOX101"),
        ],
        "Batch and time": [
            ("rewards_to_go_over_the_batch", "LOX106"),
            ("commands_in_step_with_the_batch", "LOX203"),
            ("gae_of_values_whose_batch_is_scanned", "LOX101"),
            ("rewards_minus_values_of_the_other_order", "LOX101"),
            ("steps_reshaped_to_environments", "LOX103"),
        ],
    },
    "Scans": {
        "A constant carry": [
            ("power_iteration_whose_eigenvalue_is_a_vector", "LOX200"),
            ("moving_average_whose_body_returns_one_value", "LOX201"),
        ],
        "A pure body": [
            ("a_rollout_that_logs_each_state_with_logging", "LOX410"),
            ("exploration_with_random_in_a_scan", "LOX411"),
            ("a_scan_with_a_nonlocal_total", "LOX413"),
            ("rewards_of_a_scan_that_are_stacked_from_a_list", "LOX414"),
        ],
        "Carried or scanned": [
            ("gae_that_stops_at_the_ends_of_episodes", "each"),
            ("discounted_return_of_all_rewards_in_each_step", "LOX204"),
            ("momentum_that_is_never_updated", "LOX208"),
            ("recurrent_network_that_counts_its_inputs", "LOX210"),
        ],
        "The length": [
            ("updates_over_more_steps_than_there_are_batches", "LOX202"),
            ("returns_that_count_environments", "LOX211"),
            ("errors_with_the_next_value_of_the_last_step", "LOX212"),
        ],
        "The first carry": [
            ("running_total_that_starts_as_integers", "LOX200"),
            ("recurrent_state_that_starts_without_its_batch", "LOX200"),
        ],
        "Loops that should be scans": [("recurrent_network_in_a_loop_of_python", "LOX207")],
    },
    "vmap and pmap": {
        "Where the batch is": [
            ("gae_that_is_mapped_over_time", "LOX106"),
            ("observations_whose_statistics_are_of_the_batch_and_then_of_time", "LOX312"),
        ],
        "Fixed indices": [
            ("the_first_observation_of_a_function_that_is_mapped_already", "LOX105"),
            ("a_choice_in_the_batch_that_becomes_one_of_actions", "LOX312"),
            ("the_first_of_each_sequence_where_nothing_is_declared", NOTHING),
        ],
        "Shared or batched arguments": [
            ("a_dropout_that_is_the_same_for_each_example", "LOX703"),
            ("a_loss_of_predictions_for_one_observation", "LOX310"),
            ("a_layer_whose_weights_are_mapped_like_a_batch", "LOX102"),
        ],
        "vmap in vmap": [
            ("costs_of_agents_in_environments_in_another_order", "LOX101"),
            ("values_of_actions_of_agents_by_environment", "LOX311"),
        ],
        "Devices and collectives": [
            ("gradients_that_are_averaged_over_the_wrong_axis_of_the_mesh", "LOX300"),
            ("a_penalty_that_is_summed_over_shards", "LOX301"),
            ("a_mean_of_gradients_that_were_summed_by_differentiation", "LOX302"),
            ("a_sum_of_gradients_of_a_loss_of_all_shards", "LOX303"),
            ("a_step_that_averages_gradients_and_takes_its_own", "LOX304"),
            ("a_masked_loss_that_is_averaged_over_shards", "LOX305"),
            ("a_step_on_devices_that_averages_the_loss_alone", "LOX306"),
            ("a_step_whose_gradients_differentiation_has_summed_and_whose_loss_is_averaged", "LOX307"),
            ("a_mean_over_an_axis_that_no_vmap_has", "LOX400"),
            ("a_step_on_devices_that_averages_nothing", NOTHING),
        ],
    },
    "jit": {
        "Python control flow": [
            ("a_step_that_is_taken_if_the_gradient_is_small", "LOX401"),
            ("a_sum_in_as_many_steps_as_an_array_says", "LOX402"),
            ("a_loss_as_a_python_number", "LOX405"),
        ],
        "Side effects": [
            ("a_train_step_that_prints_its_loss", "LOX410"),
            ("noise_of_a_global_generator", "LOX411"),
            ("a_step_that_stamps_its_time", "LOX412"),
            ("an_update_that_counts_itself_in_a_global", "LOX413"),
            ("a_loss_that_is_appended_to_a_global_history", "LOX414"),
        ],
        "Types of arguments": [
            ("a_jitted_layer_that_is_given_its_activation_by_name", "LOX424"),
            ("a_network_whose_static_sizes_are_a_list", "LOX425"),
            ("a_batch_that_has_a_mask_at_times", "LOX422"),
        ],
        "Compiled again": [
            ("a_prediction_whose_last_batch_is_smaller", "LOX420"),
            ("a_sum_of_integers_and_then_of_floats", "LOX421"),
            ("a_state_without_momentum_at_first", "LOX422"),
            ("a_schedule_by_a_static_step", "LOX423"),
            ("training_that_compiles_a_new_lambda_for_each_batch", "LOX434"),
            ("the_positions_above_a_threshold", "LOX404"),
        ],
        "Prints": [
            ("a_train_step_that_prints_its_loss", "LOX410"),
            ("a_search_that_prints_in_a_while_loop", "LOX415"),
            ("a_train_step_that_prints_with_jax", NOTHING),
        ],
    },
    "Pytrees": {
        "Registered classes": [("an_energy_of_a_plain_dataclass", "LOX500")],
        "The structure of trees": [
            ("gradients_of_other_parameters", "LOX400"),
            ("a_network_whose_target_is_forgotten", "LOX501"),
            ("an_action_in_a_box_that_is_validated", "LOX502"),
            ("a_train_step_that_starts_without_momentum", "LOX504"),
            ("parameters_in_another_order", NOTHING),
        ],
        "The state of modules": [
            ("update", "LOX414"),
            ("an_epoch_that_drops_the_state_of_its_optimizer", "LOX431"),
            ("a_train_step_that_loses_its_average", "LOX432"),
            ("a_cell_whose_state_is_dropped", NOTHING),
        ],
        "Named tuples and dataclasses": [
            ("a_simulation_that_carries_a_plain_dataclass", "LOX500"),
            ("a_laplacian_on_a_grid_with_a_static_array", "LOX503"),
        ],
    },
    "Gradients": {
        "A scalar result": [
            ("squared_error_of_each_example", "LOX600"),
            ("saliency_of_tokens", "LOX601"),
            ("a_step_whose_gradient_is_of_the_sum_of_no_batch", "LOX400"),
        ],
        "stop_gradient": [
            ("q_loss_with_the_wrong_side_stopped", "LOX602"),
            ("values_whose_target_moves", "LOX610"),
            ("actor_critic_whose_advantages_are_differentiated", "LOX611"),
            ("ratio_of_a_policy_to_itself", "LOX612"),
            ("distillation_that_trains_the_teacher", "LOX613"),
            ("quantization_whose_losses_move_both", "LOX614"),
            ("an_update_whose_target_moves", "LOX610"),
        ],
        "Custom rules": [
            ("loss_whose_rule_forgets_the_root", "LOX608"),
            ("rule_with_a_cotangent_of_another_shape", "LOX609"),
            ("rule_that_is_wrong_for_negative_numbers", "LOX615"),
        ],
        "Steps without a derivative": [
            ("expected_return_of_greedy_actions", "LOX602"),
            ("classifier_with_a_hard_threshold", "LOX604"),
            ("where_a_ball_lands", "LOX605"),
        ],
        "Straight-through estimators": [
            ("codebook_loss_without_straight_through", "LOX602"),
            ("codebook_loss_with_straight_through", NOTHING),
            ("estimators_of_binary_and_spiking_units", NOTHING),
            ("a_straight_through_estimator_of_another_value", NOTHING),
        ],
    },
    "Random keys": {
        "Split, not used again": [
            ("weights_and_biases_from_one_key", "LOX700"),
            ("a_training_step_that_forgets_to_renew_its_key", "LOX705"),
            ("a_dropout_by_an_old_key", "LOX707"),
        ],
        "Enough keys": [
            ("layers_of_which_the_last_takes_a_key_too_many", "LOX708"),
            ("a_step_of_a_simulation_with_two_of_four_keys", "LOX706"),
        ],
        "One key for two draws": [
            ("an_action_is_sampled_and_then_the_key_is_split", "LOX700"),
            ("two_layers_with_the_same_dropout", "LOX701"),
            ("an_action_that_is_sampled_with_a_constant_seed", "LOX704"),
        ],
        "Keys in scans": [("a_random_walk_with_the_same_steps", "LOX702")],
        "Keys in vmap": [("environments_with_the_same_noise", "LOX703")],
    },
    "Environments": {
        "Shapes through a step": [
            ("environments_that_start_anew_one_by_one", "key<fry>[100]"),
            ("environments_that_start_anew_one_by_one", "return place, -(place**2), jnp.abs(place) > 2"),
        ],
        "Resets": [
            ("environments_that_all_start_anew", "LOX222"),
            ("environments_that_keep_their_speed", "LOX221"),
        ],
        "Normalization": [
            ("normalization_over_time", "LOX105"),
            ("observations_whose_statistics_are_of_the_batch_and_then_of_time", "LOX312"),
            ("observations_whose_deviation_is_of_each_row", "LOX108"),
            ("pictures_that_are_each_centered_by_row_and_not_by_column", "LOX107"),
        ],
        "Advantages": [
            ("gae_of_which_environments_come_first", "LOX106"),
            ("discounted_returns_over_environments", "LOX105"),
            ("gae_over_the_environments_that_a_program_makes", "LOX106"),
        ],
        "Ends of episodes": [
            ("gae_without_the_ends_of_episodes", "LOX205"),
            ("gae_that_bootstraps_from_the_next_episode", "LOX220"),
            ("lstm_whose_cell_is_never_reset", "LOX221"),
            ("target_that_stops_at_a_time_limit", "LOX223"),
        ],
    },
    "Report": {
        "The data flow": [("gae", "4. End-to-end data flow")],
        "The transformations": [("an_update_whose_target_moves", "jvp")],
        "Shapes at boundaries": [
            ("gae", "float32[32 time, 16 batch]  float32[16 batch]"),
            ("the_first_of_each_sequence_where_nothing_is_declared", "Shape trace at boundaries\n\nnone"),
        ],
        "Issues": [
            ("advantages_of_transposed_values", "LOX101 error"),
            ("advantages_of_transposed_values", "    Found: "),
            ("advantages_of_transposed_values", "    Expected: "),
        ],
        "What is right": [("gae", "how it was checked")],
        "Warnings": [
            ("a_loss_that_squeezes_all_axes_of_size_1", "LOX109"),
            ("powers", "LOX110"),
        ],
    },
    "Principles": {
        "A size is not a meaning": [("advantages_of_transposed_values", "LOX101"), ("powers", "LOX110")],
        "Boundaries": [
            ("a_difference_to_donated_parameters", "LOX417"),
            ("a_batch_of_a_dataset_that_is_closed_over", "LOX416"),
            ("metrics_that_a_vmapped_function_puts_into_a_global_dict", "LOX414"),
        ],
        "State": [
            ("a_step_that_counts_in_its_default_argument", "LOX413"),
            ("training_whose_rate_decays_beside_its_compiled_step", "LOX433"),
            ("a_jitted_step_that_changes_a_dict_of_its_caller", "LOX435"),
            ("what_reads_a_dict_that_others_may_change", NOTHING),
        ],
    },
}
"""For each row of the page, programs, each with the code that an audit finds or a text of its full report."""


@functools.cache
def report(name, labelled=True):
    case = CORPUS[name]
    options = {key: value for key, value in case.options.items() if labelled or key != "axes"}
    with jax.numpy_dtype_promotion("standard"):
        return lox.audit(case.fun, **options)(*case.args)


def is_shown(name, expected, labelled=True):
    found = report(name, labelled)
    if expected is NOTHING:
        return not found.at_least("warning")
    if re.fullmatch(r"LOX\d+", expected):
        return expected in {finding.code for finding in found.at_least("info")}
    return expected in found.to_full("lines")


@pytest.fixture(scope="module")
def page():
    """The cells of each row of the page, by section and the first cell."""
    found = {}
    for section in re.split(r"(?m)^## ", PAGE.read_text(encoding="utf-8"))[1:]:
        title, _, text = section.partition("\n")
        rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in re.findall(r"(?m)^\|.*\|$", text)]
        found[title] = {first.strip(): rest for first, *rest in rows[2:]}
    return found


@pytest.mark.parametrize("section", ROWS)
def test_programs_show_what_each_row_says(section):
    programs = [(row, *shown) for row, several in ROWS[section].items() for shown in several]
    assert [program for program in programs if not is_shown(*program[1:])] == []


def test_the_page_has_these_rows_and_the_codes_that_the_programs_show(page):
    assert {section: list(rows) for section, rows in page.items()} == {
        section: list(rows) for section, rows in ROWS.items()
    }
    shown = {
        (section, row): {code for _, code in programs if code and re.fullmatch(r"LOX\d+", code)}
        for section, rows in ROWS.items()
        for row, programs in rows.items()
    }
    shown["Overview", "What a change breaks"] = {"LOX002"}
    named = {
        (section, row): set(re.findall(r"\[(LOX\d+)\]", " ".join(cells)))
        for section, rows in page.items()
        for row, cells in rows.items()
    }
    assert named == shown


def test_what_is_answered_with_labels_needs_them_and_what_is_answered_does_not(page):
    for section, rows in page.items():
        for row, (_, answered, *_) in rows.items():
            assert answered in ("yes", "with labels", "partly"), row
            labelled = [shown for shown in ROWS[section][row] if "axes" in CORPUS[shown[0]].options and shown[1]]
            if answered == "yes":
                assert section == "Report" or not labelled, row
            if answered == "with labels":
                assert labelled, row
                assert [shown for shown in labelled if is_shown(*shown, labelled=False)] == [], row


def test_beside_a_baseline_what_crosses_a_boundary_otherwise_is_said(tmp_path):
    def f(xs):
        return lax.scan(lambda carry, x: (carry + x, None), jnp.zeros(xs.shape[1:]), xs)[0]

    write_baseline(tmp_path / "known.json", [lox.audit(f)(f32(5, 3))])
    (beside,) = Baseline(tmp_path / "known.json").new([lox.audit(f)(f32(5, 4))])
    assert {finding.code for finding in beside.at_least("info")} == {"LOX002"}
