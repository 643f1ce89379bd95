"""What an audit says of loops over several episodes beyond the programs of the corpus."""

import functools

import jax
import jax.numpy as jnp
import pytest

import lox

CODES = {"LOX220", "LOX221", "LOX222", "LOX223"}


@pytest.fixture(autouse=True)
def promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield


def found(fun, *args):
    return [finding for finding in lox.audit(fun)(*args).at_least("info") if finding.code in CODES]


def backward(following_at, reverse=True):
    """Returns of rewards, whose next one goes on as a function of it and the flag says."""

    def returns(rewards, dones):
        def back(following, step):
            reward, done = step
            following = reward + 0.99 * following_at(following, done)
            return following, jnp.where(done, 0.0, following)

        return jax.lax.scan(back, jnp.zeros(4), (rewards, dones), reverse=reverse)[1]

    return found(returns, jnp.ones((8, 4)), jnp.zeros((8, 4), bool))


CUTS = [
    lambda following, done: following * (1 - done),
    lambda following, done: following * (1.0 - done.astype(jnp.float32)),
    lambda following, done: following * ~done,
    lambda following, done: following * jnp.logical_not(done),
    lambda following, done: following * (done == 0),
    lambda following, done: following - following * done,
    lambda following, done: jnp.where(done, 0.0, following),
    lambda following, done: jnp.where(~done, following, 0.0),
    lambda following, done: jax.lax.select(done, jnp.zeros_like(following), following),
    lambda following, done: jax.vmap(lambda f, d: jax.lax.cond(d, lambda f: 0.0, lambda f: f, f))(following, done),
    lambda following, done: jax.jit(lambda f, d: f * (1 - d))(following, done),
]


@pytest.mark.parametrize("cut", CUTS, ids=range(len(CUTS)))
def test_each_way_to_stop_a_return_is_understood(cut):
    assert not backward(cut)


@pytest.mark.parametrize("goes_on", [lambda f, done: f, lambda f, done: f * done, lambda f, done: f * (0.5 + done)])
def test_a_return_that_goes_on_is_an_error_that_names_it(goes_on):
    (finding,) = backward(goes_on)
    assert (finding.code, finding.severity) == ("LOX220", "error")
    assert finding.message.startswith("following of a step at which an episode ends depends on following of the step")


def test_a_product_with_a_mask_that_is_not_known_is_left_alone():
    def returns(rewards, dones, mask):
        def back(following, step):
            reward, done, valid = step
            following = reward + 0.99 * following * valid
            return following, following * (1 - done)

        return jax.lax.scan(back, jnp.zeros(4), (rewards, dones, mask), reverse=True)[1]

    assert not found(returns, jnp.ones((8, 4)), jnp.zeros((8, 4), bool), jnp.ones((8, 4)))


def environments(carried, limit=None, length=100):
    """Eight walks that are reset where they are far away, with something else that is carried."""

    def run(place, start, keys):
        def step(carry, key):
            place, other, count = carry
            place = place + jax.random.normal(key, place.shape)
            reward = -(place**2)
            done = jnp.abs(place) > 3
            if limit is not None:
                done = done | (count + 1 >= limit)
            other = carried(other, reward, done)
            return (jnp.where(done, 0.0, place), other, count + 1), (reward, other)

        return jax.lax.scan(step, (place, start, jnp.zeros(8, int)), keys)[1]

    return found(run, jnp.zeros(8), jnp.zeros(8), jax.random.split(jax.random.key(0), length))


def test_a_discounted_sum_of_rewards_that_goes_on_is_named():
    (finding,) = environments(lambda other, reward, done: 0.99 * other + reward)
    assert finding.code == "LOX221" and "sums up rewards in carry[1]" in finding.message


def test_a_state_that_is_reset_in_each_step_but_the_last_is_told():
    def encode(inputs, resets):
        def cell(hidden, at):
            x, reset = at
            hidden = jnp.tanh(x + jnp.where(reset[:, None], hidden, 0.0))
            return hidden, hidden

        return jax.lax.scan(cell, jnp.zeros((4, 3)), (inputs, resets))[1]

    (finding,) = found(encode, jnp.ones((8, 4, 3)), jnp.zeros((8, 4), bool))
    assert finding.code == "LOX221" and "starts it anew in each other step" in finding.message


def rollout(key, weights, resets):
    def step(carry, key):
        place, hidden, total, returned = carry
        hidden = jnp.tanh(place[:, None] + hidden @ weights)
        place = place + hidden.mean(axis=-1)
        done = jnp.abs(place) > 2
        place = jnp.where(done, jax.random.normal(key, place.shape), place)
        total = total - place**2
        returned = jnp.where(done, total, returned)
        hidden = jnp.where(done[:, None], 0.0, hidden) if "hidden" in resets else hidden
        total = jnp.where(done, 0.0, total) if "total" in resets else total
        return (place, hidden, total, returned), done

    start = jnp.zeros(8), jnp.zeros((8, 3)), jnp.zeros(8), jnp.zeros(8)
    return jax.lax.scan(step, start, jax.random.split(key, 50))


@pytest.mark.parametrize(
    ("resets", "words"),
    [
        (("hidden", "total"), []),
        (("hidden",), ["A loop reports total where an episode ends"]),
        (("total",), ["A loop resets place where an episode ends, and goes on with hidden"]),
    ],
)
def test_what_is_not_reset_in_a_rollout_is_named(resets, words):
    messages = [
        each.message for each in found(functools.partial(rollout, resets=resets), jax.random.key(0), jnp.eye(3))
    ]
    assert len(messages) == len(words) and all(word in message for word, message in zip(words, messages, strict=True))


@pytest.mark.parametrize(("sees", "count"), [("reward", 0), ("done", 0), ("nothing", 1)])
def test_a_recurrent_state_that_sees_rewards_or_ends_may_go_on_into_the_next_episode(sees, count):
    def adapt(key, weights):
        def step(carry, key):
            place, hidden, reward, done = carry
            seen = {"reward": reward, "done": done.astype(float), "nothing": jnp.zeros(8)}[sees]
            hidden = jnp.tanh(place[:, None] + seen[:, None] + hidden @ weights)
            place = place + hidden.mean(axis=-1)
            done = jnp.abs(place) > 2
            reward = -(place**2)
            place = jnp.where(done, jax.random.normal(key, place.shape), place)
            return (place, hidden, reward, done), reward

        start = jnp.zeros(8), jnp.zeros((8, 3)), jnp.zeros(8), jnp.zeros(8, bool)
        return jax.lax.scan(step, start, jax.random.split(key, 50))

    findings = found(adapt, jax.random.key(0), jnp.eye(3))
    assert [each.code for each in findings] == ["LOX221"] * count


def test_a_search_that_ends_once_is_left_alone():
    def sample(key):
        def draw(carry):
            found, done, tries, key = carry
            key, own = jax.random.split(key)
            proposal = jax.random.normal(own, found.shape)
            found = jnp.where(done, found, proposal)
            return found, done | (jnp.abs(proposal) < 1), tries + 1.0, key

        start = jnp.zeros(8), jnp.zeros(8, bool), 0.0, key
        return jax.lax.while_loop(lambda carry: ~carry[1].all(), draw, start)[0]

    assert not found(sample, jax.random.key(0))


@pytest.mark.parametrize(
    "carried",
    [
        lambda other, reward, done: 0.99 * other * (1 - done) + reward,
        lambda other, reward, done: 0.99 * other + 0.01 * reward,
        lambda other, reward, done: other + reward,
        lambda other, reward, done: jnp.maximum(other, reward),
        lambda other, reward, done: jnp.where(done, 0.9 * other + 0.1 * reward, other),
    ],
)
def test_statistics_over_all_episodes_are_left_alone(carried):
    assert not environments(carried)


def test_a_counter_that_ends_episodes_is_told_where_it_passes_its_limit_more_than_once():
    def constant(other, reward, done):
        return other

    assert [each.code for each in environments(constant, limit=20)] == ["LOX221"]
    assert "carry[2] is 20 or so" in environments(constant, limit=20)[0].message
    assert not environments(constant, limit=100)


def test_a_flag_that_has_no_such_name_is_one_where_it_is_declared():
    def returns(rewards, over, declared):
        def back(following, step):
            reward, over = step
            following = reward + 0.99 * following
            return following, following * (1 - over)

        with lox.audit.expect(done=declared):
            return jax.lax.scan(back, 0.0, (rewards, over), reverse=True)[1]

    args = jnp.ones(8), jnp.zeros(8)
    codes = {
        each: [x.code for x in found(lambda r, over, each=each: returns(r, over, each), *args)]
        for each in ("over", "lost")
    }
    assert codes == {"over": ["LOX220"], "lost": []}


def test_what_ends_once_for_all_leaves_nothing_to_begin_anew():
    def decode(weights):
        def step(carry, _):
            hidden, token, done = carry
            hidden = jnp.tanh(hidden @ weights + token[:, None])
            done = done | (hidden.mean(axis=-1) > 0.5)
            token = jnp.where(done, 0.0, token + hidden.max(axis=-1))
            return (hidden, token, done), token

        return jax.lax.scan(step, (jnp.zeros((4, 3)), jnp.ones(4), jnp.zeros(4, bool)), None, 20)[1]

    assert not found(decode, jnp.eye(3))


@pytest.mark.parametrize(("reset", "codes"), [((1,), ["LOX221"]), ((0, 1), [])])
def test_the_parts_of_a_state_in_a_scanned_module_are_reset_together(reset, codes):
    nn = pytest.importorskip("flax.linen")

    @functools.partial(nn.scan, variable_broadcast="params", split_rngs={"params": False})
    class Memory(nn.Module):
        @nn.compact
        def __call__(self, state, step):
            x, done = step
            state = tuple(jnp.where(done[:, None], 0.0, s) if n in reset else s for n, s in enumerate(state))
            return nn.LSTMCell(features=3)(state, x)

    state, steps = (jnp.zeros((4, 3)),) * 2, (jnp.ones((8, 4, 3)), jnp.zeros((8, 4), bool))
    weights = Memory().init(jax.random.key(0), state, steps)

    def last(weights, obs, done):
        return Memory().apply(weights, state, (obs, done))[1].sum()

    assert [each.code for each in found(jax.grad(last), weights, *steps)] == codes


def test_windows_of_which_the_last_flag_alone_is_read_are_found():
    def a_window_of_rewards_and_the_value_after_it(rewards, dones, values):
        steps = rewards.shape[0] - 2
        target, alive = jnp.zeros((steps, 8)), jnp.ones((steps, 8))
        for k in range(3):
            target = target + 0.99**k * alive * rewards[k : k + steps]
            alive = alive * (1 - dones[k : k + steps])
        return target + 0.99**3 * alive * values[3 : 3 + steps]

    def target(reward, done, value, masks):
        if masks:
            alive = jnp.concatenate([jnp.ones_like(done[:, :1]), jnp.cumprod(1 - done, axis=1)[:, :-1]], axis=1)
            return (reward * alive).sum(1) + (1 - done).prod(1) * value
        return reward.sum(1) + (1 - done[:, -1]) * value

    of = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((32, 5), (32, 5), (32,))]
    found = [lox.audit(lambda reward, done, value, on=on: target(reward, done, value, on))(*of) for on in (True, False)]
    assert [[each.code for each in report.at_least("warning")] for report in found] == [[], ["LOX220"]]
    of = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((32, 8), (32, 8), (33, 8))]
    assert not lox.audit(a_window_of_rewards_and_the_value_after_it)(*of).at_least("warning")
