"""It really learns: gradients are right, people's judgements are learnt, answers get better."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from rft import data, policy, reward
from rft.adam import Parameters
from rft.files import rng_from_array, rng_to_array
from rft.language import (
    WORDS,
    Numbers,
    decode_answer,
    encode_answers,
    encode_prompts,
    prompts,
)
from rft.local import Bench
from rft.models import Answers, load_policy, load_reward_model, save_answers, save_policy
from rft.truth import true_score

EXAMPLE = Path(__file__).resolve().parents[1]


def moved(parameters: Parameters, along: Parameters, by: float) -> Parameters:
    return {n: (v + np.float32(by) * along[n]).astype(np.float32) for n, v in parameters.items()}


def slope_ratio(loss: object, parameters: Parameters, gradients: Parameters) -> float:
    """Return measured over computed slope along the gradient; 1 if the gradient is right."""
    norm = np.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in gradients.values()))
    along = {name: (g / norm).astype(np.float32) for name, g in gradients.items()}
    far = 1e-2
    up, down = loss(moved(parameters, along, far)), loss(moved(parameters, along, -far))  # type: ignore[operator]  # parametrised
    return float((up - down) / (2 * far * norm))


@pytest.fixture
def pairs() -> data.Pairs:
    return data.preferences().rows(np.arange(40))


def test_the_policys_gradient_is_the_slope_of_its_loss(pairs: data.Pairs) -> None:
    start = policy.new_policy(np.random.default_rng(1))
    made = policy.decisions(pairs.prompts, pairs.chosen)
    for part in (tuple(start), *((name,) for name in start)):
        gradients = policy.imitation(start, made)[1]
        only = {n: g if n in part else np.zeros_like(g) for n, g in gradients.items()}
        ratio = slope_ratio(lambda p: policy.imitation(p, made)[0], start, only)
        assert ratio == pytest.approx(1, abs=0.03), part


def test_the_reward_models_gradient_is_the_slope_of_its_loss(pairs: data.Pairs) -> None:
    start = reward.new_member(np.random.default_rng(1))
    for part in (tuple(start), *((name,) for name in start)):
        gradients = reward.pair_loss(start, pairs)[1]
        only = {n: g if n in part else np.zeros_like(g) for n, g in gradients.items()}
        ratio = slope_ratio(lambda p: reward.pair_loss(p, pairs)[0], start, only)
        assert ratio == pytest.approx(1, abs=0.03), part


def test_drawn_answers_carry_their_own_log_probability() -> None:
    start = policy.new_policy(np.random.default_rng(2))
    asked = encode_prompts(prompts(held_out=True))
    answers, logs = policy.write_answers(start, asked, np.random.default_rng(3))
    again = policy.answer_log_probabilities(start, asked, answers)
    np.testing.assert_allclose(logs, again, rtol=1e-4, atol=1e-3)


def test_an_answer_reads_as_it_was_written() -> None:
    words = ["hello", "we", "will", "check", "your", "order", "thank", "you"]
    assert decode_answer(encode_answers([words])[0]) == words
    with pytest.raises(ValueError, match="at most 13"):
        encode_answers([["we"] * 14])


def test_no_message_is_both_trained_on_and_held_out() -> None:
    trained_on, held_out = set(prompts(held_out=False)), set(prompts(held_out=True))
    assert not trained_on & held_out
    assert {word for prompt in trained_on for word in prompt} >= {w for p in held_out for w in p}
    seen = {tuple(WORDS[n] for n in row) for row in data.preferences().prompts}
    assert seen <= trained_on


def test_the_data_is_what_the_script_writes(tmp_path: Path) -> None:
    import make_data

    for name, text in make_data.texts().items():
        assert (EXAMPLE / "data" / name).read_text(encoding="utf-8") == text


def test_a_generator_goes_on_where_it_was_saved() -> None:
    rng = np.random.default_rng(5)
    rng.random(7)
    copy = rng_from_array(rng_to_array(rng))
    assert copy.random(100).tolist() == rng.random(100).tolist()


def test_feedback_changes_the_reward_model_for_the_better(bench: Bench, trained: Path) -> None:
    asked = encode_prompts(prompts(held_out=True))
    answers, logs = policy.write_answers(load_policy(trained), asked, np.random.default_rng(0))
    save_answers(bench.store, 0, Answers(asked, answers, logs))
    one = bench.start("feedback", inputs={"reward_training": trained, "rollout": bench.store})
    assert one.wait(60) == [0]
    before, after = load_reward_model(trained), load_reward_model(one.output)
    later, _ = data.feedback(first_round=1, last_round=1).split()
    assert reward.accuracy(after, later) > reward.accuracy(before, later)
    assert not np.allclose(
        reward.reward(before, asked, answers), reward.reward(after, asked, answers), atol=0.05
    )


def test_an_evaluation_of_a_worse_policy_fails_and_says_why(
    bench: Bench, trained: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    worse = bench.store / "worse"
    worse.mkdir()
    save_policy(worse, policy.new_policy(np.random.default_rng(0)))
    inputs = {"reward_training": trained, "policy_update": worse, "feedback": trained}
    one = bench.start("evaluation", inputs=inputs)
    assert one.wait(60) == [1]
    assert "no better than the first" in capfd.readouterr().err


def test_people_like_what_they_say_they_like() -> None:
    best = ["hello", "sorry", "we", "will", "check", "your", "order", "today", "thank", "you"]
    assert true_score(("angry", "order", "mail"), best) > 3.5
    assert true_score(("angry", "order", "mail"), ["whatever", "no"]) < 0


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [7, 11, 23])
def test_the_whole_pipeline_improves_round_after_round(tmp_path: Path, seed: int) -> None:
    bench = Bench(tmp_path, envs={"RFT_SCALE": "0.5", "RFT_SEED": str(seed)})
    rewards: list[float] = []
    told: dict[str, float] = {}
    for phase, _, _, one in bench.run_all():
        if phase == "policy_update":
            rewards.append(one.metrics()["reward_mean"])
        told = one.metrics()
    assert len(rewards) == 4
    assert all(later > earlier for earlier, later in itertools.pairwise(rewards)), rewards
    assert told["reward_after"] > told["reward_before"] + 1.0
    assert told["win_rate"] > 0.8


def scores(asked: Numbers, answers: Numbers) -> float:
    rows = zip(asked, answers, strict=True)
    found = [true_score((WORDS[p[0]], WORDS[p[1]], WORDS[p[2]]), decode_answer(a)) for p, a in rows]
    return float(np.mean(found))


def test_people_prefer_what_they_chose_on_the_whole() -> None:
    pairs = data.preferences()
    assert scores(pairs.prompts, pairs.chosen) > scores(pairs.prompts, pairs.rejected) + 1.0
